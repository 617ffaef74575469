"""Read crop boxes of images, such as those of the queries of Revisited Oxford and Paris."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.images import size_as_host
from guie.data.manifest.companions import COLUMNS, line_of, read_companion

BEYOND_PX = 1  # tolerance beyond the image, which Pillow fills with black


class Box(NamedTuple):
    """A box in pixels of the image from `open_as_host`; right and bottom are exclusive."""

    left_px: int
    top_px: int
    right_px: int
    bottom_px: int


def read_boxes(path: Path, images: Collection[str]) -> pd.DataFrame:
    """Return the companion `boxes`: image_path and the four sides as whole numbers, indexed from 0.

    Args:
        images: those of the manifest.

    Raises UserError naming the line of a box that is invalid, empty, repeated, or of an unknown image.
    """
    boxes = read_companion(path, "boxes")
    _, *sides = COLUMNS["boxes"]
    _refuse(path, boxes, ~boxes["image_path"].isin(images), "the manifest has no such image")
    _refuse(path, boxes, boxes.duplicated("image_path"), "already has a box; delete one")
    numbers = boxes[sides].apply(pd.to_numeric, errors="coerce")
    _refuse(path, boxes, ~np.isfinite(numbers).all(axis=1), "a side of its box is not a number")
    rounded = np.rint(numbers).astype(int)
    empty = (rounded["x1_px"] >= rounded["x2_px"]) | (rounded["y1_px"] >= rounded["y2_px"])
    _refuse(path, boxes, empty, "its box is empty")
    return rounded.assign(image_path=boxes["image_path"])[boxes.columns]


def boxes_of(
    path: Path, boxes: pd.DataFrame, root: Path, images: Sequence[str]
) -> list[Box | None]:
    """Return the box of each image, or None.

    Raises UserError naming the line of a box outside its image.
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
                f"{path}:{line_of(row)}: {image}: its box {sides} is outside the image, which is"
                f" {width} x {height}"
            )
    return crops


def _refuse(path: Path, boxes: pd.DataFrame, bad: pd.Series, fault: str) -> None:
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise UserError(f"{path}:{line_of(row)}: {boxes['image_path'][row]}: {fault}")
