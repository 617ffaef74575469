"""Load what is scored: manifest rows with companion files, and embeddings of one model or specialists."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.manifest import Manifest
from guie.data.manifest.companions import companion_path, read_companion
from guie.evaluation.embeddings import Embeddings, load_embeddings
from guie.evaluation.knn import unit_vectors
from guie.evaluation.reduction import fit_components, random_projection

FITTED = ("pca", "pca-whitened")  # reductions that are fitted on train images


def joined(specialists: Mapping[str, np.ndarray], join: str) -> Embeddings:
    """Join embeddings of the same images by several models; the oracle keeps them by domain.

    Args:
        specialists: embeddings [N, D] of each specialist, by its domain.
        join: a key of `guie.evaluation.protocols.catalogue.JOINS`.

    Raises UserError for a mean of different dimensions.
    """
    if join == "oracle":
        return dict(specialists)
    units = [_units(emb_ND) for emb_ND in specialists.values()]
    if join == "concat":
        return np.concatenate(units, axis=1)
    dims = {name: emb_ND.shape[1] for name, emb_ND in specialists.items()}
    if len(set(dims.values())) > 1:
        message = ", ".join(f"{name} {dim}" for name, dim in dims.items())
        raise UserError(f"--join mean: the specialists' dimensions must be equal: {message}")
    return np.asarray(np.mean(units, axis=0, dtype=np.float32))


def reduced(
    given: Embeddings,
    fit: Embeddings | None,
    kind: str,
    dim: int,
    seed: int = 0,
) -> Embeddings:
    """Reduce the dimension of embeddings, separately for every specialist.

    Args:
        fit: embeddings [F, D] by the same models, to fit PCA on; other reductions need none.
        kind: one of `guie.evaluation.protocols.catalogue.REDUCTIONS`.
        seed: of a random projection; equal dimensions get equal projections.

    Raises UserError if that many dimensions cannot be fitted.
    """
    if not isinstance(given, np.ndarray):
        fits = fit if isinstance(fit, Mapping) else dict.fromkeys(given)
        return {n: _reduced(emb_ND, fits[n], kind, dim, seed) for n, emb_ND in given.items()}
    assert not isinstance(fit, Mapping)
    return _reduced(given, fit, kind, dim, seed)


def _reduced(
    emb_ND: np.ndarray, fit_FD: np.ndarray | None, kind: str, dim: int, seed: int
) -> np.ndarray:
    if kind == "first":
        if not 0 < dim <= emb_ND.shape[1]:
            raise UserError(f"--dim {dim}: must be 1 to the embedding's {emb_ND.shape[1]}")
        return emb_ND[:, :dim]
    unit_ND = _units(emb_ND)
    if kind == "random":
        return random_projection(unit_ND, dim, seed)
    assert fit_FD is not None
    return fit_components(_units(fit_FD), dim, whiten=kind == "pca-whitened").of(unit_ND)


def _units(emb_ND: np.ndarray) -> np.ndarray:
    return unit_vectors(emb_ND, np.arange(len(emb_ND)).astype(str))


TEXTS = "texts"  # the data set of text queries

Source = Path | Sequence[str]  # one model's E.npz, or DOMAIN=E.npz of each specialist


def table_of(manifest: Manifest, split: str, texts: Path | None = None) -> pd.DataFrame:
    """Return the rows of a split, with subsets if subsets.csv is next to the manifest, and text queries."""
    table = manifest.split(split)
    subsets = companion_path(manifest.path, "subsets")
    if os.path.lexists(subsets):
        table = with_subsets(table, read_companion(subsets, "subsets"))
    return with_texts(table, read_companion(texts, "texts")) if texts else table


def with_texts(table: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """Append the rows of the companion file `texts` to the table, as queries of the data set `texts`.

    Raises UserError if a text has the name of an image, or of another text.
    """
    again = texts["image_path"].isin(table["image_path"]) | texts.duplicated("image_path")
    if again.any():
        raise UserError(f"--texts: {texts['image_path'][again].iloc[0]} is already used; rename it")
    dataset = table["dataset"] if "dataset" in table else table["domain"]
    asked = texts.drop(columns="text").assign(role="query", dataset=TEXTS)
    both = pd.concat([table.assign(dataset=dataset), asked], ignore_index=True)
    return both.fillna({"subsets": ""}) if "subsets" in both else both


def with_subsets(table: pd.DataFrame, subsets: pd.DataFrame) -> pd.DataFrame:
    """Add the column `subsets` to the table, from the companion file (subset, image_path)."""
    named = subsets.groupby("image_path")["subset"].agg("|".join)
    return table.assign(subsets=table["image_path"].map(named).fillna(""))


def read_embeddings(source: Source, table: pd.DataFrame, join: str) -> Embeddings:
    """Read one model's embeddings [T, D], or join those of specialists. Raises UserError."""
    if isinstance(source, Path):
        return load_embeddings(source, table)
    files: dict[str, str] = {}
    for word in source:
        name, sign, path = word.partition("=")
        if not (name and sign and path) or name in files:
            raise UserError(f"{word!r}: must be DOMAIN=FILE, with each domain once")
        files[name] = path
    return joined({name: load_embeddings(path, table) for name, path in files.items()}, join)
