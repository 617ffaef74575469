"""Companion tables of a manifest: relevance grades, crop boxes, test subsets and text queries.

The file is `<manifest name>.<kind>.csv`, as curate.py writes it, or `<kind>.csv` in a folder with one
manifest. Images are named as in the manifest's image_path.

| kind | columns | content |
|---|---|---|
| relevance | query, image, grade | Revisited Oxford and Paris: easy, hard or junk |
| boxes | image_path, x1_px, y1_px, x2_px, y2_px | the crop of an image that embed.py uses |
| subsets | subset, image_path | test sets that are parts of the whole one (VehicleID) |
| texts | image_path, text, label, domain | text queries; image_path is the query's name |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.data.manifest.columns import one_class_each
from guie.data.manifest.reading import read_csv_rows

COLUMNS = {
    "relevance": ("query", "image", "grade"),
    "boxes": ("image_path", "x1_px", "y1_px", "x2_px", "y2_px"),
    "subsets": ("subset", "image_path"),
    "texts": ("image_path", "text", "label", "domain"),
}
IMAGES = ("query", "image", "image_path")  # columns that name an image

Companions = Mapping[str, pd.DataFrame]  # by kind


def companion_path(manifest: Path, kind: str) -> Path:
    """Return `<kind>.csv` if only that exists, else `<manifest name>.<kind>.csv`."""
    own, plain = manifest.with_suffix(f".{kind}.csv"), manifest.with_name(f"{kind}.csv")
    return plain if plain.is_file() and not own.is_file() else own


def read_companion(path: Path, kind: str) -> pd.DataFrame:
    """Return its columns as text, indexed from 0. Raises UserError."""
    needed = ", ".join(COLUMNS[kind])
    rows = read_csv_rows(path).table
    for column in COLUMNS[kind]:
        if column not in rows:
            raise UserError(f"{path}: no column {column!r}; the columns must be {needed}")
    return rows[list(COLUMNS[kind])]


def read_companions(manifest: Path) -> Companions:
    """Return all companions of a manifest. Raises UserError."""
    paths = {kind: companion_path(manifest, kind) for kind in COLUMNS}
    return {kind: read_companion(path, kind) for kind, path in paths.items() if path.is_file()}


def write_companions(manifest: Path, companions: Companions) -> None:
    """Write a manifest's companions, each atomically. Others stay, as they may be made by hand."""
    for kind, rows in companions.items():
        with replacing(manifest.with_suffix(f".{kind}.csv")) as temporary:
            rows[list(COLUMNS[kind])].to_csv(temporary, index=False, lineterminator="\n")


def line_of(row: int) -> int:
    """Return the line in the file of a row of `read_companion`."""
    return row + 2


def renamed(companions: Companions, rename: Callable[[pd.Series], pd.Series]) -> Companions:
    """Return the companions with `rename` applied to every column of image names."""
    return {
        kind: rows.assign(**{column: rename(rows[column]) for column in _images(rows)})
        for kind, rows in companions.items()
    }


def joined(several: Iterable[Companions]) -> Companions:
    """Concatenate the companions of several manifests, each kind in their order."""
    tables: dict[str, list[pd.DataFrame]] = {}
    for companions in several:
        for kind, rows in companions.items():
            tables.setdefault(kind, []).append(rows)
    return {kind: pd.concat(parts, ignore_index=True) for kind, parts in tables.items()}


def within(companions: Companions, table: pd.DataFrame) -> Companions:
    """Return the rows about images in a manifest's table; of texts, those about its classes."""
    if not companions:
        return {}
    paths, classes = set(table["image_path"]), set(one_class_each(table)["label"])
    kept = {}
    for kind, rows in companions.items():
        wanted = {"label": classes} if kind == "texts" else dict.fromkeys(_images(rows), paths)
        known = [rows[column].isin(names) for column, names in wanted.items()]
        kept[kind] = rows[np.logical_and.reduce(known)].reset_index(drop=True)
    return {kind: rows for kind, rows in kept.items() if len(rows)}


def _images(rows: pd.DataFrame) -> list[str]:
    return [column for column in IMAGES if column in rows]
