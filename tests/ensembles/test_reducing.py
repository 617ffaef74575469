"""A reduced run gives the principal components of its model's embeddings, fitted on train alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.random_projection import GaussianRandomProjection

import export
from composing import composition, random_clip, record
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config.loading import read_values, to_yaml
from guie.data.dataset import EvalDataset
from guie.data.manifest import load_manifest, save_manifest
from guie.ensembles.samples import Fits
from guie.evaluation.reduction import balanced_sample, fit_components
from guie.evaluation.validation import quick_scores
from guie.models import open_model
from guie.rows.embedding import embed_files
from guie.training.run_folder import read_metrics
from tiny_runs import mix_with_val, tiny_run


@pytest.fixture(scope="module")
def mix(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of at most two classes a domain and three images a class, of every split."""
    path = mix_with_val(toy_manifest, tmp_path_factory.mktemp("mix") / "mix.csv")
    table = load_manifest(path).table
    image = table.groupby(["split", "label"]).cumcount()
    number = table.groupby(["split", "domain"])["label"].transform(lambda x: x.factorize()[0])
    save_manifest(table[(image < 3) & (number < 2)].reset_index(drop=True), path)
    return path


def main(model: str | Path, mix: Path, root: Path, out: Path, dim: int, **pca: Any) -> Path:
    """Scored by val, and unless it is said otherwise PCA of the train images."""
    data = {"manifest": str(mix), "root": str(root)}
    how = {"name": "pca", "images": data, **pca}
    return composition(out, [model], val=data, reduce={**how, "dim": dim})


def embedded(
    model: str | Path, mix: Path, root: Path, split: str
) -> tuple[np.ndarray, pd.DataFrame]:
    rows = load_manifest(mix, root).split(split)
    opened, files = open_model(str(model)), [root / path for path in rows["image_path"]]
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


@pytest.mark.parametrize(
    ("head", "whiten"),
    [(None, False), ({"dim": 32, "norm": "bn"}, True)],
    ids=["headless", "head, whitened"],
)
def test_a_reduced_run_is_its_principal_components(
    head: dict | None, whiten: bool, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    root, run = toy_manifest.parent, tiny_run(tmp_path / "a", head=head)
    out = main(run, mix, root, tmp_path / "out", 8, whiten=whiten)
    fit_ND, _ = embedded(run, mix, root, "train")
    val_ND, rows = embedded(run, mix, root, "val")
    found_NR, _ = embedded(out, mix, root, "val")
    expected_NR = by_hand(val_ND, fit_ND, 8, whiten)
    # the sign of a component is free; similarities know none
    np.testing.assert_allclose(found_NR @ found_NR.T, expected_NR @ expected_NR.T, atol=1e-4)

    (line,) = read_metrics(out / "metrics.jsonl")
    assert line["val_mmp_at_5"] == pytest.approx(quick_scores(found_NR, rows)["mmp_at_5"])
    message = record(out)["reduction"]
    before = record(out)["members"][0]["val"]
    assert before["val_r_at_1"] == pytest.approx(quick_scores(val_ND, rows)["r_at_1"])
    variance_D = np.linalg.svd(fit_ND - fit_ND.mean(axis=0), compute_uv=False) ** 2
    np.testing.assert_allclose(
        message["explained_variance"], variance_D[:8] / variance_D.sum(), rtol=1e-3
    )


def test_a_librarys_model_becomes_a_run(
    mix: Path,
    toy_manifest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "small"
    main(random_clip(tmp_path), mix, toy_manifest.parent, out, 16)
    (tmp_path / "clip.pt").unlink()  # the run is whole without it
    model = open_model(out)
    assert model.embedder.dim == 16
    assert model.config.image.mean == list(model.embedder.backbone.mean)
    printed = capsys.readouterr().out
    assert "128 dimensions, val R@1" in printed and "reduced to 16 dimensions, which" in printed
    monkeypatch.setattr("guie.export.submission.odd_sizes", lambda size_px: [(1, 99)])
    export.main(["--run", str(out), "--out", str(tmp_path / "submission")])


def test_a_run_with_lora_is_reduced(mix: Path, toy_manifest: Path, tmp_path: Path) -> None:
    """Its adapters are merged, so the rates that trained them no longer apply."""
    run = tiny_run(tmp_path / "a", adapters=[{"kind": "lora", "rank": 2}])
    config = read_values(run / "config.yaml").plain
    config["stages"][0]["lr"] = {"adapters": 1e-3, "head": 1e-3, "classes": 1e-3}
    (run / "config.yaml").write_text(to_yaml(config))
    root = toy_manifest.parent
    out = main(run, mix, root, tmp_path / "out", 8)
    fit_ND, _ = embedded(run, mix, root, "train")
    val_ND, _ = embedded(run, mix, root, "val")
    found_NR, _ = embedded(out, mix, root, "val")
    expected_NR = by_hand(val_ND, fit_ND, 8, whiten=False)
    np.testing.assert_allclose(found_NR @ found_NR.T, expected_NR @ expected_NR.T, atol=1e-4)


def test_texts_are_enough(mix: Path, toy_manifest: Path, tmp_path: Path, monkeypatch) -> None:
    words = tmp_path / "words.txt"
    words.write_text("\n".join([*(f"word {n}" for n in range(30)), "", "word 3 "]))
    monkeypatch.chdir(tmp_path)  # where texts are kept
    monkeypatch.setattr(Fits, "embedded", None)  # no image is embedded to be fitted on
    root = toy_manifest.parent
    out = main(
        random_clip(tmp_path), mix, root, tmp_path / "small", 8, images=None, texts=str(words)
    )
    message = record(out)["reduction"]
    assert message["fitted_on"]["lines"] == 30
    assert open_model(out).embedder.dim == 8
    with pytest.raises(UserError, match="has no text encoder"):
        main(out, mix, root, tmp_path / "again", 4, images=None, texts=str(words))


def test_only_train_or_val_is_fitted_on(mix: Path, toy_manifest: Path, tmp_path: Path) -> None:
    root, run = toy_manifest.parent, tiny_run(tmp_path / "a", head=None)
    data = {"manifest": str(mix), "root": str(root), "per_domain": 3, "seed": 5}
    with pytest.raises(UserError, match=r"reduce\.images\.split: Input should be 'train' or 'val'"):
        main(run, mix, root, tmp_path / "x", 4, images=data | {"split": "test"})
    with pytest.raises(UserError, match=r"the train split has no domain 'sea'; available: \w+, "):
        main(run, mix, root, tmp_path / "x", 4, images=data | {"domains": ["sea"]})
    fitted: list[Path] = []
    domains = load_manifest(mix, root).split("train").set_index("image_path")["domain"]
    two = sorted(domains.unique())[:2]

    def noting(self: EvalDataset, files: list[Path], *more: Any, **kw: Any) -> None:
        fitted[:] = files
        opened(self, files, *more, **kw)

    opened = EvalDataset.__init__
    config = {"name": "pca", "dim": 4, "images": data | {"domains": two}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EvalDataset, "__init__", noting)
        out = composition(tmp_path / "b", [run], reduce=config)
    names = [str(file.relative_to(root)) for file in fitted]
    expected = domains[domains.isin(two)].value_counts().clip(upper=3).to_dict()
    assert domains[names].value_counts().to_dict() == expected
    assert record(out)["reduction"]["fitted_on"]["images"] == expected
    with pytest.raises(UserError, match=r"dim 100: fitting needs more than 100 images"):
        main(run, mix, root, tmp_path / "x", 100, images=data | {"domains": two})


@pytest.mark.parametrize("head", [None, {"dim": 32}], ids=["headless", "head"])
def test_a_random_matrix_and_the_first_numbers(head: dict | None, tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", head=head)
    picture = torch.randint(0, 256, (1, 3, 40, 30), dtype=torch.uint8)
    with torch.no_grad():
        whole = open_model(run).scored(picture)
        first = composition(tmp_path / "f", [run], reduce={"name": "first", "dim": 8})
        expected = torch.nn.functional.normalize(whole[:, :8], dim=1)
        torch.testing.assert_close(open_model(first).scored(picture), expected)
        drawn = composition(tmp_path / "r", [run], reduce={"name": "random", "dim": 8})
        matrix = GaussianRandomProjection(8, random_state=0).fit(whole.numpy()).components_
        expected = torch.nn.functional.normalize(whole @ torch.tensor(matrix.T).float(), dim=1)
        torch.testing.assert_close(open_model(drawn).scored(picture), expected)
        again = composition(tmp_path / "a", [drawn], reduce={"name": "first", "dim": 4})
        expected = torch.nn.functional.normalize(expected[:, :4], dim=1)
        torch.testing.assert_close(open_model(again).scored(picture), expected)


def test_the_sample_does_not_depend_on_the_order_of_rows() -> None:
    rows = pd.DataFrame({"image_path": [f"{n}.jpg" for n in range(40)], "domain": ["a", "b"] * 20})
    rows = pd.concat([rows, rows[:7]], ignore_index=True)  # an image of several rows counts once
    sample = balanced_sample(rows, 5, seed=1)
    assert sample.equals(balanced_sample(rows[::-1], 5, seed=1))
    assert sample["domain"].value_counts().to_dict() == {"a": 5, "b": 5}
    assert not sample.equals(balanced_sample(rows, 5, seed=2))
    assert len(balanced_sample(rows, 9000, seed=1)) == 40


def test_whitened_components_have_unit_variance() -> None:
    rng = np.random.default_rng(0)
    data_ND = rng.normal(size=(500, 6)) * [9, 5, 3, 2, 1, 0.5] + 4
    found = fit_components(data_ND, 3, whiten=True)
    projected_NR = (data_ND - found.mean_D) @ found.weight_DR
    np.testing.assert_allclose(np.cov(projected_NR.T), np.eye(3), atol=1e-8)
    plain = fit_components(data_ND, 3, whiten=False)
    np.testing.assert_allclose(plain.weight_DR.T @ plain.weight_DR, np.eye(3), atol=1e-8)


def test_what_cannot_be_fitted_is_told() -> None:
    data_ND = np.random.default_rng(0).normal(size=(50, 10))
    flat_ND = data_ND[:, :3] @ np.random.default_rng(1).normal(size=(3, 10))
    cases = [(data_ND, 10, "has 10 dimensions; take 1 to 9"), (data_ND, 0, "take 1 to 9")]
    cases += [(data_ND * np.nan, 4, "not finite"), (data_ND[:5], 5, "more than 5")]
    cases += [(flat_ND.astype(np.float32), 4, "vary in 3 dimensions")]
    for emb_ND, dim, message in cases:
        with pytest.raises(UserError, match=message):
            fit_components(emb_ND, dim, whiten=True)
