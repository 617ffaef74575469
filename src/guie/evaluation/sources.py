"""What is scored: rows of a manifest with what stands beside it, and embeddings from files.

Shape legend: T rows of the table, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.data.manifest import Manifest, companion_path, read_companion
from guie.evaluation.components import PER_DOMAIN, balanced_sample
from guie.evaluation.embeddings import load_embeddings
from guie.evaluation.joined import FITTED, Joined, joined, reduced
from guie.evaluation.protocols import with_subsets, with_texts

Source = Path | Sequence[str]  # one model's E.npz, or DOMAIN=E.npz of each specialist


def table_of(manifest: Manifest, split: str, texts: Path | None = None) -> pd.DataFrame:
    """The rows of a split, with their subsets where subsets.csv is beside the manifest, and text queries."""
    table = manifest.split(split)
    subsets = companion_path(manifest.path, "subsets")
    if subsets.is_file():
        table = with_subsets(table, read_companion(subsets, "subsets"))
    return with_texts(table, read_companion(texts, "texts")) if texts else table


def read_embeddings(source: Source, table: pd.DataFrame, join: str) -> Joined:
    """One model's embeddings [T, D], or those of specialists as they are joined. Raises UserError."""
    if isinstance(source, Path):
        return load_embeddings(source, table)
    files: dict[str, str] = {}
    for word in source:
        name, sign, path = word.partition("=")
        if not (name and sign and path) or name in files:
            raise UserError(f"{word!r}: give DOMAIN=FILE, each domain once")
        files[name] = path
    return joined({name: load_embeddings(path, table) for name, path in files.items()}, join)


def reduce_embeddings(
    given: Joined, kind: str, dim: int, fit: Source | None, manifest: Manifest, join: str
) -> Joined:
    """The same in `dim` dimensions, by a map fitted on train images of the manifest.

    Args:
        kind: of `REDUCTIONS`, of which FITTED are fitted on train images.
        fit: embeddings of train images, from the same models.

    Raises UserError where there is nothing to fit on.
    """
    if kind not in FITTED:
        return reduced(given, None, kind, dim)
    if not fit:
        raise UserError(f"--reduce {kind}: name what it is fitted on by --fit")
    sample = balanced_sample(manifest.split("train"), PER_DOMAIN, seed=0)
    return reduced(given, read_embeddings(fit, sample, join), kind, dim)
