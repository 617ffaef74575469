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

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.config.types import Decode
from guie.data.images import size_as
from guie.data.manifest.reading import one_class_each, read_csv_rows

COLUMNS = {
    "relevance": ("query", "image", "grade"),
    "boxes": ("image_path", "x1_px", "y1_px", "x2_px", "y2_px"),
    "subsets": ("subset", "image_path"),
    "texts": ("image_path", "text", "label", "domain"),
}
IMAGES = ("query", "image", "image_path")  # columns that name an image

Companions = Mapping[str, pd.DataFrame]  # by kind
BEYOND_PX = 1  # tolerance beyond the image, which Pillow fills with black


def companion_path(manifest: Path, kind: str) -> Path:
    """Return `<kind>.csv` if only that exists, else `<manifest name>.<kind>.csv`."""
    own, plain = manifest.with_suffix(f".{kind}.csv"), manifest.with_name(f"{kind}.csv")
    return plain if os.path.lexists(plain) and not os.path.lexists(own) else own


def read_companion(path: Path, kind: str) -> pd.DataFrame:
    """Return its columns as text, indexed by the line in the file. Raises UserError."""
    rows = read_csv_rows(path, COLUMNS[kind])
    return rows.table[list(COLUMNS[kind])].set_axis(rows.places)


def read_companions(manifest: Path) -> Companions:
    """Return all companions of a manifest, indexed from 0. Raises UserError."""
    return {
        kind: read_companion(path, kind).reset_index(drop=True)
        for kind in COLUMNS
        if os.path.lexists(path := companion_path(manifest, kind))
    }


def write_companions(manifest: Path, companions: Companions) -> None:
    """Write a manifest's companions, each atomically. Others stay, as they may be made by hand."""
    for kind, rows in companions.items():
        with replacing(manifest.with_suffix(f".{kind}.csv")) as temporary:
            rows[list(COLUMNS[kind])].to_csv(temporary, index=False, lineterminator="\n")


def renamed(companions: Companions, rename: Callable[[pd.Series], pd.Series]) -> Companions:
    """Return the companions with `rename` applied to every column of image names."""
    return {
        kind: rows.assign(**{column: rename(rows[column]) for column in _images(rows)})
        for kind, rows in companions.items()
    }


def joined(several: Sequence[Companions]) -> Companions:
    """Concatenate the companions of several manifests, each kind in their order."""
    kinds = dict.fromkeys(kind for companions in several for kind in companions)
    return {
        kind: pd.concat([one[kind] for one in several if kind in one], ignore_index=True)
        for kind in kinds
    }


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


class Box(NamedTuple):
    """A box in pixels of the image as its manifest decodes it; right and bottom are exclusive."""

    left_px: int
    top_px: int
    right_px: int
    bottom_px: int

    def corners(self, size_px: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return the box itself; it has been checked to be within the image."""
        return self


def read_boxes(path: Path, images: Collection[str]) -> pd.DataFrame:
    """Return the companion `boxes`: image_path and the four sides as whole numbers, indexed by line.

    Raises UserError naming the line of a box that is invalid, empty, repeated, or of no image of `images`.
    """
    boxes = read_companion(path, "boxes")
    _, *sides = COLUMNS["boxes"]
    numbers = boxes[sides].apply(pd.to_numeric, errors="coerce")
    finite = np.isfinite(numbers).all(axis=1)
    rounded = np.rint(numbers[finite]).astype(int).reindex(boxes.index, fill_value=0)
    empty = (rounded["x1_px"] >= rounded["x2_px"]) | (rounded["y1_px"] >= rounded["y2_px"])
    for bad, fault in (
        (~boxes["image_path"].isin(images), "the manifest has no such image"),
        (boxes.duplicated("image_path"), "already has a box; delete one"),
        (~finite, "a side of its box is not a number"),
        (empty, "its box is empty"),
    ):
        if bad.any():
            line = bad.idxmax()
            raise UserError(f"{path}:{line}: {boxes['image_path'][line]}: {fault}")
    return rounded.assign(image_path=boxes["image_path"])[boxes.columns]


def boxes_of(
    path: Path, boxes: pd.DataFrame, root: Path, images: Sequence[str], decode: Decode = "seen"
) -> list[Box | None]:
    """Return the box of each image, or None. Raises UserError naming the line of a box outside its image."""
    found = {name: (line, Box(*sides)) for line, name, *sides in boxes.itertuples(name=None)}
    for image in images:
        if image not in found:
            continue
        (line, box), (width, height) = found[image], size_as(decode, root / image)
        beyond = max(-box.left_px, -box.top_px, box.right_px - width, box.bottom_px - height)
        if beyond > BEYOND_PX:
            fault = f"its box {', '.join(map(str, box))} is outside the image"
            raise UserError(f"{path}:{line}: {image}: {fault}, which is {width} x {height}")
    return [found[image][1] if image in found else None for image in images]
