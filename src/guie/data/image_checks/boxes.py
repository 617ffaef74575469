"""Boxes that images are cropped to before a model sees them: the queries of Revisited Oxford and Paris."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.images import size_as_host
from guie.data.manifest.companions import COLUMNS, line_of, read_companion

BEYOND_PX = 1  # which a box may reach beyond its image, and Pillow fills with black


class Box(NamedTuple):
    """In pixels of the image as `open_as_host` gives it; right and bottom are the first beyond."""

    left_px: int
    top_px: int
    right_px: int
    bottom_px: int


def read_boxes(path: Path, images: Collection[str]) -> pd.DataFrame:
    """The companion `boxes`: image_path, and the four sides as whole numbers, indexed from 0.

    Args:
        images: those of the manifest.

    Raises UserError that names the line of a box of no such image, of a second one, of one that is no
    number or empty.
    """
    boxes = read_companion(path, "boxes")
    _, *sides = COLUMNS["boxes"]
    _refuse(path, boxes, ~boxes["image_path"].isin(images), "the manifest has no such image")
    _refuse(path, boxes, boxes.duplicated("image_path"), "has a box already; delete one")
    numbers = boxes[sides].apply(pd.to_numeric, errors="coerce")
    _refuse(path, boxes, ~np.isfinite(numbers).all(axis=1), "a side of its box is no number")
    rounded = np.rint(numbers).astype(int)
    empty = (rounded["x1_px"] >= rounded["x2_px"]) | (rounded["y1_px"] >= rounded["y2_px"])
    _refuse(path, boxes, empty, "its box is empty")
    return rounded.assign(image_path=boxes["image_path"])[boxes.columns]


def boxes_of(
    path: Path, boxes: pd.DataFrame, root: Path, images: Sequence[str]
) -> list[Box | None]:
    """The box of each image, None where it has none.

    Raises UserError that names the line of a box that lies outside of its image.
    """
    found = {name: (row, Box(*sides)) for row, name, *sides in boxes.itertuples(name=None)}
    crops: list[Box | None] = []
    for image in images:
        row, box = found.get(image, (-1, None))
        crops.append(box)
        if box is None:
            continue
        width, height = size_as_host(root / image)
        beyond = max(-box.left_px, -box.top_px, box.right_px - width, box.bottom_px - height)
        if beyond > BEYOND_PX:
            sides = ", ".join(map(str, box))
            raise UserError(
                f"{path}:{line_of(row)}: {image}: its box {sides} lies outside of the image, which is"
                f" {width} x {height}"
            )
    return crops


def _refuse(path: Path, boxes: pd.DataFrame, bad: pd.Series, fault: str) -> None:
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise UserError(f"{path}:{line_of(row)}: {boxes['image_path'][row]}: {fault}")
