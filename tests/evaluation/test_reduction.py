"""Joined specialists, and fewer dimensions."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from guie.base.errors import UserError
from guie.data.manifest import Manifest, Sidecar
from guie.evaluation.reduction import joined, read_embeddings, reduced
from guie.report.scoring import embeddings_of

RNG = np.random.default_rng(0)
A_ND = RNG.normal(size=(40, 6)).astype(np.float32)
B_ND = 9 * RNG.normal(size=(40, 6)).astype(np.float32)


def unit(emb_ND: np.ndarray) -> np.ndarray:
    return emb_ND / np.linalg.norm(emb_ND, axis=1, keepdims=True)


def test_joins_are_of_unit_vectors() -> None:
    both = {"cars": A_ND, "food": B_ND}
    assert np.allclose(joined(both, "mean"), (unit(A_ND) + unit(B_ND)) / 2, atol=1e-6)
    assert np.allclose(joined(both, "concat"), np.hstack([unit(A_ND), unit(B_ND)]), atol=1e-6)
    assert joined(both, "oracle").keys() == both.keys()
    with pytest.raises(UserError, match="dimensions must be equal: cars 6, food 3"):
        joined({"cars": A_ND, "food": B_ND[:, :3]}, "mean")


def test_side_by_side_cosines_are_the_mean_of_the_members() -> None:
    side_ND = unit(joined({"0": A_ND, "1": B_ND}, "concat"))
    mean_NN = (unit(A_ND) @ unit(A_ND).T + unit(B_ND) @ unit(B_ND).T) / 2
    assert np.allclose(side_ND @ side_ND.T, mean_NN, atol=1e-6)


def test_the_first_dimensions_of_an_ensemble_are_its_first_members() -> None:
    members = {str(n): RNG.normal(size=(40, 3)).astype(np.float32) for n in range(4)}
    whole_ND = joined(members, "concat")
    for count in (1, 2, 4):
        first = joined(dict(list(members.items())[:count]), "concat")
        assert np.array_equal(reduced(whole_ND, None, "first", 3 * count), first)
    for dim in (0, 13):
        with pytest.raises(UserError, match=f"dim {dim}: must be 1 to the embedding's 12"):
            reduced(whole_ND, None, "first", dim)


def test_components_keep_the_most_and_whitened_all_alike() -> None:
    spread = np.array([4, 3, 0.02, 0.02, 0.02, 0.02])
    fit_FD = (RNG.normal(size=(500, 6)) * spread).astype(np.float32)
    two = reduced(fit_FD, fit_FD, "pca", 2)
    cosines = unit(fit_FD) @ unit(fit_FD).T
    centred = unit(fit_FD) - unit(fit_FD).mean(0)
    assert np.abs(two @ two.T - centred @ centred.T).max() < 0.1 * np.abs(cosines).max()
    white = reduced(fit_FD, fit_FD, "pca-whitened", 2)
    assert np.allclose(np.cov(white.T), np.eye(2), atol=0.01)
    assert reduced(A_ND, None, "random", 4).shape == (40, 4)


def test_specialists_are_fitted_each_on_its_own() -> None:
    given = {"cars": A_ND, "food": B_ND}
    both = reduced(given, {"cars": A_ND, "food": B_ND}, "pca", 2)
    assert np.allclose(both["food"], reduced(B_ND, B_ND, "pca", 2))


def test_files_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    table = pd.DataFrame({"image_path": [f"{n}.jpg" for n in range(40)]})
    for name, emb_ND in (("a", A_ND), ("b", B_ND)):
        np.savez(tmp_path / f"{name}.npz", image_path=table["image_path"].to_numpy(str),
                 embedding=emb_ND)  # fmt: skip
    words = [f"cars={tmp_path}/a.npz", f"food={tmp_path}/b.npz"]
    read = read_embeddings(words, table, "concat")
    assert np.allclose(read, joined({"cars": A_ND, "food": B_ND}, "concat"))
    for wrong in ("cars", f"=x{tmp_path}", words[0]):
        with pytest.raises(UserError, match="must be DOMAIN=FILE, with each domain once"):
            read_embeddings([words[0], wrong], table, "mean")
    manifest = Manifest(table, tmp_path, tmp_path / "m.csv", Sidecar())
    given = {"specialists": words, "join": "concat", "fit": None, "dim": 6, "seed": 0}
    with pytest.raises(
        UserError, match="--reduce pca: needs embeddings of train images; name them by --fit"
    ):
        embeddings_of(Namespace(reduce="pca", **given), manifest, table)
    first = embeddings_of(Namespace(reduce="first", **given), manifest, table)
    assert np.allclose(first, unit(A_ND), atol=1e-6)
