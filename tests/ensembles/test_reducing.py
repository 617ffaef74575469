"""A reduced run gives the principal components of its model's embeddings, fitted on train alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.random_projection import GaussianRandomProjection
from torch.nn import functional

import export
from composing import composition, random_clip, record
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config.loading import read_values, to_yaml
from guie.data.manifest import load_manifest, save_manifest
from guie.ensembles.samples import Fits
from guie.evaluation.reduction import balanced_sample, fit_components
from guie.evaluation.validation import quick_scores
from guie.models import open_model
from guie.rows.embedding import embed_files
from guie.training.run_folder import read_metrics
from tiny_runs import tiny_run


@pytest.fixture(scope="module")
def few(data: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """At most two classes a domain and three images a class, of every split."""
    table = load_manifest(data["manifest"]).table
    image = table.groupby(["split", "label"]).cumcount()
    number = table.groupby(["split", "domain"])["label"].transform(lambda x: x.factorize()[0])
    path = tmp_path_factory.mktemp("few") / "mix.csv"
    save_manifest(table[(image < 3) & (number < 2)].reset_index(drop=True), path)
    return data | {"manifest": str(path)}


def main(model: str | Path, few: dict[str, str], out: Path, dim: int, **pca: Any) -> Path:
    """Scored by val, and unless changed PCA of the train images."""
    reduce = {"name": "pca", "images": few, "dim": dim, **pca}
    return composition(out, [model], val=few, reduce=reduce)


def embedded(model: Path, few: dict[str, str], split: str) -> tuple[np.ndarray, pd.DataFrame]:
    manifest = load_manifest(few["manifest"], few["root"])
    rows, opened = manifest.split(split), open_model(model)
    files = [manifest.file(path) for path in rows["image_path"]]
    emb_ND = embed_files(make_accelerator(), opened.embedder, opened.preprocess, files, workers=0)
    return emb_ND, rows


def by_hand(emb_ND: np.ndarray, fit_ND: np.ndarray, dim: int, whiten: bool) -> np.ndarray:
    """Another way: the SVD of the centred embeddings."""
    mean_D = fit_ND.astype(np.float64).mean(axis=0)
    _, scale_D, rows_DD = np.linalg.svd(fit_ND - mean_D, full_matrices=False)
    projected_NR = (emb_ND - mean_D) @ rows_DD[:dim].T
    if whiten:
        projected_NR /= scale_D[:dim] / np.sqrt(len(fit_ND) - 1)
    return projected_NR / np.linalg.norm(projected_NR, axis=1, keepdims=True)


LORA = {"adapters": [{"kind": "lora", "rank": 2}]}


@pytest.mark.parametrize(
    ("model", "whiten"),
    [({"head": None}, False), ({"head": {"dim": 32, "norm": "bn"}}, True), (LORA, False)],
    ids=["without a head", "with a head, whitened", "with LoRA"],
)
def test_a_reduced_run_is_its_principal_components(
    model: dict, whiten: bool, few: dict[str, str], tmp_path: Path
) -> None:
    run = tiny_run(tmp_path / "a", **model)
    if model is LORA:  # adapters are merged, so the rates that trained them no longer apply
        config = read_values(run / "config.yaml").plain
        config["stages"][0]["lr"] = {"adapters": 1e-3, "head": 1e-3, "classes": 1e-3}
        (run / "config.yaml").write_text(to_yaml(config))
    out = main(run, few, tmp_path / "out", 8, whiten=whiten)
    fit_ND, _ = embedded(run, few, "train")
    val_ND, rows = embedded(run, few, "val")
    found_NR, _ = embedded(out, few, "val")
    expected_NR = by_hand(val_ND, fit_ND, 8, whiten)
    # the sign of a component is free; similarities know none
    np.testing.assert_allclose(found_NR @ found_NR.T, expected_NR @ expected_NR.T, atol=1e-4)

    (line,) = read_metrics(out / "metrics.jsonl")
    assert line["val_mmp_at_5"] == pytest.approx(quick_scores(found_NR, rows)["mmp_at_5"])
    before = record(out)["members"][0]["val"]
    assert before["val_r_at_1"] == pytest.approx(quick_scores(val_ND, rows)["r_at_1"])
    variance_D = np.linalg.svd(fit_ND - fit_ND.mean(axis=0), compute_uv=False) ** 2
    shares = record(out)["reduction"]["explained_variance"]
    np.testing.assert_allclose(shares, variance_D[:8] / variance_D.sum(), rtol=1e-3)


def test_a_librarys_model_becomes_a_run(
    few: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch
) -> None:
    out = main(random_clip(tmp_path), few, tmp_path / "small", 16)
    (tmp_path / "clip.pt").unlink()  # the run is complete without it
    model = open_model(out)
    assert model.embedder.dim == 16
    assert model.config.image.mean == list(model.embedder.backbone.mean)
    printed = capsys.readouterr().out
    assert "128 dimensions, val R@1" in printed and "reduced to 16 dimensions, which" in printed
    monkeypatch.setattr("guie.export.parity.odd_sizes", lambda size_px: [(1, 99)])
    export.main(["--run", str(out), "--out", str(tmp_path / "submission")])


def test_texts_are_enough(few: dict[str, str], tmp_path: Path, monkeypatch) -> None:
    words = tmp_path / "words.txt"
    words.write_text("\n".join([*(f"word {n}" for n in range(30)), "", "word 3 "]))
    monkeypatch.chdir(tmp_path)  # where texts are kept
    monkeypatch.setattr(Fits, "embedded", None)  # no image is embedded to be fitted on
    texts = {"images": None, "texts": str(words)}
    out = main(random_clip(tmp_path), few, tmp_path / "small", 8, **texts)
    assert record(out)["reduction"]["fitted_on"]["lines"] == 30
    assert open_model(out).embedder.dim == 8
    with pytest.raises(UserError, match="has no text encoder"):
        main(out, few, tmp_path / "again", 4, **texts)


def test_the_sample_is_fitted_on(few: dict[str, str], tmp_path: Path) -> None:
    """Of the train split, of the named domains, at most so many images of each."""
    run = tiny_run(tmp_path / "a", head=None)
    sample = few | {"per_domain": 3, "seed": 5}
    with pytest.raises(UserError, match=r"the train split has no domain 'sea'; available: \w+, "):
        main(run, few, tmp_path / "x", 4, images=sample | {"domains": ["sea"]})
    domains = load_manifest(few["manifest"], few["root"]).split("train")["domain"]
    sample["domains"] = sorted(domains.unique())[:2]
    pca = {"name": "pca", "dim": 4, "images": sample}
    out = composition(tmp_path / "b", [run], reduce=pca)
    expected = domains[domains.isin(sample["domains"])].value_counts().clip(upper=3).to_dict()
    assert record(out)["reduction"]["fitted_on"]["images"] == expected
    with pytest.raises(UserError, match=r"dim 100: fitting needs more than 100 images"):
        main(run, few, tmp_path / "x", 100, images=sample)


@torch.no_grad()
@pytest.mark.parametrize("head", [None, {"dim": 32}], ids=["without a head", "with a head"])
def test_a_random_matrix_and_the_first_numbers(head: dict | None, tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", head=head)
    picture = torch.randint(0, 256, (1, 3, 40, 30), dtype=torch.uint8)
    whole = open_model(run).scored(picture)
    matrix = GaussianRandomProjection(8, random_state=0).fit(whole.numpy()).components_
    drawn = functional.normalize(whole @ torch.tensor(matrix.T).float(), dim=1)
    for name, member, dim, expected in (
        ("first", run, 8, whole[:, :8]),
        ("random", run, 8, drawn),
        ("first", tmp_path / "random8", 4, drawn[:, :4]),  # of the one before
    ):
        reduce = {"name": name, "dim": dim}
        out = composition(tmp_path / f"{name}{dim}", [member], reduce=reduce)
        found = open_model(out).scored(picture)
        torch.testing.assert_close(found, functional.normalize(expected, dim=1))


def test_the_sample_does_not_depend_on_the_order_of_rows() -> None:
    rows = pd.DataFrame({"image_path": [f"{n}.jpg" for n in range(40)], "domain": ["a", "b"] * 20})
    rows = pd.concat([rows, rows[:7]], ignore_index=True)  # an image of several rows counts once
    sample = balanced_sample(rows, 5, seed=1)
    assert sample.equals(balanced_sample(rows[::-1], 5, seed=1))
    assert sample["domain"].value_counts().to_dict() == {"a": 5, "b": 5}
    assert not sample.equals(balanced_sample(rows, 5, seed=2))
    assert len(balanced_sample(rows, 9000, seed=1)) == 40


def test_a_fit_without_enough_data_is_refused() -> None:
    data_ND = np.random.default_rng(0).normal(size=(50, 10))
    flat_ND = data_ND[:, :3] @ np.random.default_rng(1).normal(size=(3, 10))
    for emb_ND, dim, message in (
        (data_ND, 10, "has 10 dimensions; take 1 to 9"),
        (data_ND * np.nan, 4, "not finite"),
        (data_ND[:5], 5, "more than 5"),
        (flat_ND.astype(np.float32), 4, "vary in 3 dimensions"),
    ):
        with pytest.raises(UserError, match=message):
            fit_components(emb_ND, dim, whiten=True)
