"""Re-ranking by patches: matches and their geometry, in validation and in search."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import embed
import validate
from guie.base.errors import UserError
from guie.evaluation import opened as opening
from guie.evaluation.opened import PatchFeatures
from guie.evaluation.rerank import DEPTH, WEIGHT, consistent_shares, reordered
from guie.models import open_model
from guie.report import scoring
from guie.search import open_index
from some_pictures import folder_of, indexed
from tiny_runs import tiny_run

SIDE, DIM = 5, 16


def units(*shape: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def moved(patches_PF: np.ndarray, down: int, right: int) -> np.ndarray:
    """The same picture shifted; what comes in at the edges is new."""
    old = patches_PF.reshape(SIDE, SIDE, DIM)
    new = units(SIDE, SIDE, DIM, seed=9)
    new[down:, right:] = old[: SIDE - down, : SIDE - right]
    return new.reshape(-1, DIM)


@pytest.mark.parametrize(("down", "right"), [(0, 0), (1, 2)])
def test_a_shifted_picture_keeps_the_patches_that_both_show(down: int, right: int) -> None:
    query = units(SIDE * SIDE, DIM)
    shown = (SIDE - down) * (SIDE - right)
    (share,) = consistent_shares(query, moved(query, down, right)[None])
    assert shown <= round(share * SIDE * SIDE) <= shown + 2  # chance matches of new patches


def test_only_the_first_candidates_are_reordered() -> None:
    query = units(SIDE * SIDE, DIM)
    images = units(DEPTH + 10, SIDE * SIDE, DIM, seed=3)
    images[DEPTH - 1] = images[DEPTH + 1] = query
    rows = np.arange(DEPTH + 10)[None]
    score = np.linspace(0.9, 0.8, DEPTH + 10, dtype=np.float32)[None]
    found, after = reordered(rows, score, query[None], lambda rows_C: images[rows_C])
    assert found[0, 0] == DEPTH - 1 and after[0, 0] == pytest.approx(score[0, DEPTH - 1] + WEIGHT)
    assert found[0, DEPTH:].tolist() == list(range(DEPTH, DEPTH + 10))
    assert sorted(found[0]) == list(range(DEPTH + 10)) and rows[0, 0] == 0
    empty = np.full((1, 3), -1), np.full((1, 3), -np.inf)
    assert reordered(*empty, query[None], images.__getitem__)[0].tolist() == [[-1] * 3]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, 30 labelled pictures, their embeddings and index."""
    folder = tmp_path_factory.mktemp("local")
    tiny_run(folder / "run")
    folder_of(folder)
    indexed(folder / "run", folder / "m.csv", folder / "index")
    words = ["--model", str(folder / "run"), "--manifest", str(folder / "m.csv")]
    embed.main([*words, "--out", str(folder / "E.npz"), "--workers", "0"])
    return folder


def test_patches_are_the_tokens_of_the_last_block(place: Path) -> None:
    model = open_model(str(place / "run"))
    features = PatchFeatures(model)
    side = model.embedder.backbone.size_px
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    tower, seen = model.embedder.backbone.tower, []
    block = model.embedder.backbone.structure().blocks[-1].module
    hook = block.register_forward_hook(lambda module, given, output: seen.append(output))
    with torch.inference_mode():
        tower.eval()(images)
        hook.remove()
        found = features.eval()(images).reshape(2, features.patches, -1)
    expected = seen[0][:, 1:]
    expected = expected / expected.norm(dim=-1, keepdim=True)
    assert features.patches > 1 and torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("methods", [["local"], ["expand", "csls"], ["augment", "softmax"]])
def test_validation_and_search_re_rank_alike(place: Path, methods: list[str]) -> None:
    words = ["--embeddings", str(place / "E.npz"), "--manifest", str(place / "m.csv")]
    words += ["--model", str(place / "run")] if methods == ["local"] else []
    words += ["--draws", "0", "--out", str(place / "r.json"), "--rerank", *methods]
    validate.main(words)
    searcher = open_index(place / "index", rerank=methods)
    files = searcher.engine.files
    hits = [searcher.like(path, 1)[0] for path in files["image_path"]]
    right = pd.Series([hit.label for hit in hits]) == files["label"].to_numpy()
    means = right.groupby(files["domain"].to_numpy()).mean()
    report = json.loads((place / "r.json").read_text())["domains"]
    assert {name: report[name]["r_at_1"] for name in means.index} == means.to_dict()


def test_blocks_of_a_killed_search_are_of_the_same_weights(place, tmp_path, monkeypatch):
    keys = []
    monkeypatch.setattr(scoring, "search_together", lambda *given, key, **_: keys.append(key))
    run = shutil.copytree(place / "run", tmp_path / "run")
    words = ["--embeddings", str(place / "E.npz"), "--manifest", str(place / "m.csv")]
    words += ["--rerank", "local", "--model", str(run), "--out", str(tmp_path / "r.json")]
    validate.main(words)
    validate.main(words)
    tiny_run(run, moved=0.1)  # trained again in place
    validate.main(words)
    assert keys[0] == keys[1] != keys[2]


def test_a_picture_is_re_ranked_by_its_patches_though_another_is_gone(place: Path) -> None:
    searcher = open_index(place / "index", rerank=["local"])
    paths = searcher.engine.files["image_path"]
    found = searcher.query(searcher.root / paths[7], 6)
    assert found[0].image_path == paths[7]
    gone = searcher.root / found[1].image_path
    gone.rename(searcher.root / "gone.png")
    try:
        hits = open_index(place / "index", rerank=["local"]).query(searcher.root / paths[7], 30)
        assert len(hits) == 30
    finally:
        (searcher.root / "gone.png").rename(gone)


def test_a_model_without_patches_or_too_many_of_them(place, monkeypatch):
    words = ["--embeddings", str(place / "E.npz"), "--manifest", str(place / "m.csv")]
    words += ["--out", str(place / "r.json"), "--rerank", "local", "--model"]
    resnet = {"library": "timm", "name": "test_resnet", "pretrained": None}
    tiny_run(place / "resnet", backbone=resnet)
    with pytest.raises(UserError, match="its backbone is not a plain vision transformer"):
        validate.main([*words, str(place / "resnet")])
    monkeypatch.setattr(opening, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="the patches of 30 images need 0 GB; at most 0 GB"):
        validate.main([*words, str(place / "run")])
