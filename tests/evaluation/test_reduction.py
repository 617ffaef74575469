"""Joined specialists, and fewer dimensions."""

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
BOTH = {"cars": A_ND, "food": B_ND}


def unit(emb_ND: np.ndarray) -> np.ndarray:
    return emb_ND / np.linalg.norm(emb_ND, axis=1, keepdims=True)


def test_joins_are_of_unit_vectors() -> None:
    assert np.allclose(joined(BOTH, "mean"), (unit(A_ND) + unit(B_ND)) / 2, atol=1e-6)
    assert np.allclose(joined(BOTH, "concat"), np.hstack([unit(A_ND), unit(B_ND)]), atol=1e-6)
    assert joined(BOTH, "oracle") == BOTH
    with pytest.raises(UserError, match="dimensions must be equal: cars 6, food 3"):
        joined({"cars": A_ND, "food": B_ND[:, :3]}, "mean")


def test_the_first_dimensions_of_an_ensemble_are_its_first_members() -> None:
    whole_ND = joined(BOTH, "concat")
    assert np.array_equal(reduced(whole_ND, None, "first", 6), unit(A_ND))
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
    each = reduced(BOTH, BOTH, "pca", 2)  # each specialist by its own components
    assert np.allclose(each["food"], reduced(B_ND, B_ND, "pca", 2))


def test_specialists_are_read_from_files(tmp_path: Path) -> None:
    table = pd.DataFrame({"image_path": [f"{n}.jpg" for n in range(40)]})
    paths = table["image_path"].to_numpy(str)
    for name, emb_ND in BOTH.items():
        np.savez(tmp_path / f"{name}.npz", image_path=paths, embedding=emb_ND)
    words = [f"{name}={tmp_path}/{name}.npz" for name in BOTH]
    read = read_embeddings(words, table, "concat")
    assert np.allclose(read, joined(BOTH, "concat"))
    for wrong in ("cars", f"=x{tmp_path}", words[0]):
        with pytest.raises(UserError, match="must be DOMAIN=FILE, with each domain once"):
            read_embeddings([words[0], wrong], table, "mean")
    manifest = Manifest(table, tmp_path, tmp_path / "m.csv", Sidecar())
    given = {"specialists": words, "join": "concat", "fit": None, "dim": 6, "seed": 0}
    with pytest.raises(UserError, match="--reduce pca: needs embeddings of train images"):
        embeddings_of(Namespace(reduce="pca", **given), manifest, table)
    first = embeddings_of(Namespace(reduce="first", **given), manifest, table)
    assert np.allclose(first, unit(A_ND), atol=1e-6)
