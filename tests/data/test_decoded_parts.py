"""Parts of pictures, decoded no larger than they are needed: the pixels that Pillow has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pictures import jpeg, whole
from PIL import Image

from guie.base.errors import UserError
from guie.data.images import Region, open_as_seen, open_part

JPEGS = {
    "4:2:0": {},
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:1:1": {"subsampling": "4:1:1"},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_rows": 1},
    "RGB inside": {"keep_rgb": True},
    "grey": {"mode": "L"},
    "CMYK": {"mode": "CMYK"},
}


@pytest.mark.parametrize("kind", JPEGS)
def test_parts_have_the_pixels_that_pillow_decodes(tmp_path: Path, kind: str) -> None:
    path = jpeg(tmp_path / "a.jpg", **JPEGS[kind])
    for reduction in (1, 2, 4, 8):
        with Image.open(path) as image:
            image.draft(None, (image.width // reduction, image.height // reduction))
            expected = np.asarray(image.convert("RGB"))
        enough = -(-251 // reduction)
        pixels, size = open_part(path, whole, lambda height, _, e=enough: height >= e)
        assert size == (251, 333)
        assert np.array_equal(pixels, expected)


def test_a_jpeg_of_many_bytes_that_pillow_forgives_is_not_refused(tmp_path: Path) -> None:
    path = jpeg(tmp_path / "a.jpg")
    data = bytearray(path.read_bytes())
    data[3000:3020] = bytes(20)
    path.write_bytes(data)
    pixels, _ = open_part(path, whole, lambda *_: False)
    assert np.array_equal(pixels, np.asarray(open_as_seen(path)))
    path.write_bytes(data[:-200])
    with pytest.raises(UserError, match="truncated"):
        open_part(path, whole, lambda *_: False)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_part_is_of_the_picture_as_seen(tmp_path: Path, orientation: int) -> None:
    turn = Image.Exif()
    turn[0x0112] = orientation
    path = jpeg(tmp_path / "a.jpg", size=(960, 640), exif=turn)
    seen, part, told = open_as_seen(path), Region(0.1, 0.2, 0.6, 0.9), []

    def part_of(height: int, width: int) -> Region:
        told.append((height, width))
        return part

    for reduction in (1, 2, 4, 8):
        rows = seen.height // 2 // reduction
        pixels, size = open_part(path, part_of, lambda height, _, rows=rows: height >= rows - 1)
        assert size == told.pop() == (seen.height, seen.width)
        assert abs(pixels.shape[0] - rows) <= 1
        box = (0.2 * seen.width, 0.1 * seen.height, 0.9 * seen.width, 0.6 * seen.height)
        expected = seen.resize(pixels.shape[1::-1], Image.Resampling.BOX, box)
        apart = np.abs(np.asarray(expected, dtype=float) - pixels)
        assert apart.mean() < 2.0
