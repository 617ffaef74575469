"""Boxes of images: rounded as the benchmark's code rounds, refused by line where they cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from guie.base.errors import UserError
from guie.data.manifest.companions import Box, boxes_of, read_boxes

HEADER = "image_path,x1_px,y1_px,x2_px,y2_px"


def crops(folder: Path, *lines: str) -> list[Box | None]:
    """Of three images, 12 wide and 8 high."""
    images = ["a.png", "b.png", "c.png"]
    for name in images:
        Image.new("RGB", (12, 8)).save(folder / name)
    path = folder / "boxes.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return boxes_of(path, read_boxes(path, images), folder, images)


def test_sides_are_rounded_as_pillow_does(tmp_path: Path) -> None:
    sides = (0.5, 1.5, 9.51, 6.5)
    found = crops(tmp_path, f"b.png,{','.join(map(str, sides))}")
    assert found == [None, Box(0, 2, 10, 6), None]
    image = Image.fromarray(np.arange(96, dtype=np.uint8).reshape(8, 12))
    assert np.array_equal(image.crop(sides), image.crop(found[1]))


def test_a_pixel_beyond_the_image_is_black(tmp_path: Path) -> None:
    assert crops(tmp_path, "a.png,-1,0,13,8.4")[0] == Box(-1, 0, 13, 8)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("d.png,0,0,4,4", "boxes.csv:3: d.png: the manifest has no such image"),
        ("a.png,0,0,4,4", "boxes.csv:3: a.png: already has a box; delete one"),
        ("b.png,0,x,4,4", "boxes.csv:3: b.png: a side of its box is not a number"),
        ("b.png,0,,4,4", "boxes.csv:3: b.png: a side of its box is not a number"),
        ("b.png,0,0,inf,4", "boxes.csv:3: b.png: a side of its box is not a number"),
        ("b.png,4,0,4.3,4", "boxes.csv:3: b.png: its box is empty"),
        ("b.png,0,5,4,4", "boxes.csv:3: b.png: its box is empty"),
        ("b.png,0,0,14,4", "boxes.csv:3: b.png: its box 0, 0, 14, 4 is outside.* is 12 x 8"),
        ("b.png,0,-2,4,4", "boxes.csv:3: b.png: its box 0, -2, 4, 4 is outside"),
    ],
)
def test_a_box_that_cannot_be_is_refused_by_its_line(line: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=fault) as caught:
        crops(tmp_path, "a.png,0,0,4,4", line)
    assert "\n" not in str(caught.value)
