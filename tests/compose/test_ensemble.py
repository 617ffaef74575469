"""Several models side by side: their embeddings in one row; scored, reduced, exported as one."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import ensemble
import export
import reduce
import soup
import train
from guie.base.errors import UserError
from guie.model import open_model, side_by_side
from guie.training.run.record import read_metrics
from tiny_runs import mix_with_val, tiny_run, weights

TINY_VIT = {
    "library": "timm",
    "name": "vit_tiny_patch16_224",
    "kwargs": {"embed_dim": 48, "depth": 1, "num_heads": 3},
}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two that see an image alike, one at another size and fit, with a head that takes its shape."""
    image = {"size_px": 48, "fit": "pad", "mean": [0.5, 0.4, 0.3]}
    other = {"backbone": TINY_VIT, "image": image}
    head = {"dim": 24, "norm": "bn", "image_shape": True}
    return [
        tiny_run(tmp_path / "a"),
        tiny_run(tmp_path / "b", start=1),
        tiny_run(tmp_path / "c", size_px=48, head=head, **other),
    ]


@pytest.fixture(scope="module")
def mix(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mix_with_val(toy_manifest, tmp_path_factory.mktemp("mix") / "mix.csv")


def main(runs: list[Path], out: Path, *more: str) -> Path:
    return ensemble.main(["--models", *map(str, runs), "--out", str(out), "--workers", "0", *more])


def pictures() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8) for size in [(50, 31), (9, 70)]]


@torch.no_grad()
def test_the_members_embeddings_stand_side_by_side(runs: list[Path], tmp_path: Path) -> None:
    members, both = [open_model(run) for run in runs], open_model(main(runs, tmp_path / "all"))
    assert both.embedder.dim == 16 + 16 + 24
    assert both.preprocess.view_of == [0, 0, 1]  # the first two share one
    for picture in pictures():
        expected = torch.cat([member.scored(picture) for member in members], dim=1)
        torch.testing.assert_close(both.scored(picture), functional.normalize(expected, dim=1))


@torch.no_grad()
def test_the_cosine_is_the_mean_of_the_members(runs: list[Path]) -> None:
    members = [open_model(run) for run in runs]
    both = side_by_side(members)
    cosines = [
        functional.cosine_similarity(*map(model.scored, pictures())) for model in (both, *members)
    ]
    torch.testing.assert_close(cosines[0], torch.stack(cosines[1:]).mean(dim=0))


def test_an_ensemble_is_whole_without_its_members(runs: list[Path], tmp_path: Path) -> None:
    out = main(runs, tmp_path / "all")
    live = side_by_side([open_model(run) for run in runs]).embedder.state_dict()
    for run in runs:
        run.rename(run.with_name(run.name + "_gone"))
    found = weights(out)
    assert found.keys() == live.keys()
    assert all(torch.equal(found[name], live[name]) for name in live)


def test_it_is_scored_reduced_and_exported(
    runs: list[Path], mix: Path, toy_manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    data = ["--manifest", str(mix), "--root", str(toy_manifest.parent)]
    out = main(runs, tmp_path / "all", *data)
    assert "side by side (56-D): val R@1" in capsys.readouterr().out
    (line,) = read_metrics(out / "metrics.jsonl")
    told = json.loads((out / "record.json").read_text())["ensemble"]["members"]
    assert [member["model"] for member in told] == list(map(str, runs))
    assert all(0 < member["val"]["val_r_at_1"] <= 1 for member in told)

    small = tmp_path / "small"
    words = ["--model", str(out), *data, "--dim", "8", "--out", str(small), "--workers", "0"]
    reduce.main(words)
    reduction = json.loads((small / "record.json").read_text())["reduction"]
    assert reduction["val_before"]["val_r_at_1"] == pytest.approx(line["val_r_at_1"])

    submission = tmp_path / "submission"
    export.main(["--run", str(small), "--out", str(submission)])
    with zipfile.ZipFile(submission / "submission.zip") as archive:
        saved = torch.jit.load(io.BytesIO(archive.read("saved_model.pt")))
    model = open_model(small)
    with torch.no_grad():
        for picture in pictures():
            torch.testing.assert_close(saved(picture), model.scored(picture), atol=1e-5, rtol=0)
    card = (submission / "card.md").read_text()
    for words in ("| Dimension | 8 |", "pad to 48 px", "### Model 3", "squash to 32 px"):
        assert words in card
    assert f"### Model 1: `{runs[0].name}`" in card and "2 epochs" not in card


def test_a_model_with_itself_ranks_as_alone(runs: list[Path]) -> None:
    one = open_model(runs[0])
    twice = side_by_side([one, one])
    with torch.no_grad():
        embs = [[model.scored(p).numpy() for p in pictures()] for model in (one, twice)]
    np.testing.assert_allclose(embs[0][0] @ embs[0][1].T, embs[1][0] @ embs[1][1].T, atol=1e-6)


def test_what_cannot_be_joined_is_refused(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two at least"):
        main(runs[:1], tmp_path / "one")
    out = main(runs[:2], tmp_path / "two")
    with pytest.raises(UserError, match="holds a run already"):
        main(runs, out)
    with pytest.raises(UserError, match="stands for several models; name its members"):
        main([out, runs[2]], tmp_path / "nested")
    with pytest.raises(UserError, match="no such run folder"):
        main([runs[0], tmp_path / "none"], tmp_path / "gone")
    with pytest.raises(UserError, match="stands for several models; average runs of each"):
        soup.main(["--runs", str(out), str(runs[0]), "--out", str(tmp_path / "soup")])
    config = tmp_path / "two.yaml"
    config.write_text(f"base: {runs[0] / 'config.yaml'}\nname: two\nout: {tmp_path}\n")
    with pytest.raises(UserError, match="holds several models"):
        train.main(["--config", str(config)])
