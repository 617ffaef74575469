"""Views of a picture that near-duplicates are compared by: a border or a small cut must not count."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

REDUCED_PX = 128  # the shorter side is box-filtered down to between this and twice as much
PLAIN = 24  # grey levels that a border may vary by, and still be one
CONTENT = 0.02  # share of a line that must differ from the border for the line to be content
MIN_CONTENT_PX = 16  # of the reduced picture: a smaller speck is no picture
CUT = 0.05  # of each side


def content(image: Image.Image) -> Image.Image:
    """The picture without plain borders: its own margin, and the frame that somebody put around."""
    return _without_border(_without_border(image))


def centre(image: Image.Image) -> Image.Image:
    """What a slight crop leaves: the picture without a twentieth at each side."""
    x, y = round(CUT * image.width), round(CUT * image.height)
    return image.crop((x, y, image.width - x, image.height - y))


def altered(image: Image.Image) -> Image.Image:
    """A copy as the web makes them, cut and compressed: how alike copies are under a model."""
    buffer = io.BytesIO()
    centre(content(image)).save(buffer, "JPEG", quality=75)
    return Image.open(buffer).convert("RGB")


def reduction(image: Image.Image) -> int:
    """The integer factor that a picture may be reduced by before its coarse structure is read."""
    return max(1, min(image.size) // REDUCED_PX)


def _without_border(image: Image.Image) -> Image.Image:
    factor = reduction(image)
    grey = image if image.mode == "L" else image.convert("L")
    box = _content_box(np.asarray(grey if factor == 1 else grey.reduce(factor)))
    if box is None:
        return image
    left, top, right, bottom = (factor * side for side in box)
    return image.crop((left, top, min(right, image.width), min(bottom, image.height)))


def _content_box(grey_HW: np.ndarray) -> tuple[int, int, int, int] | None:
    """Left, top, right, bottom of what a plain border surrounds; None where there is no border."""
    corners = grey_HW[[0, 0, -1, -1], [0, -1, 0, -1]]
    if np.ptp(corners) > PLAIN:
        return None
    differs_HW = np.abs(grey_HW.astype(np.int16) - int(np.median(corners))) > PLAIN
    rows = np.flatnonzero(differs_HW.mean(axis=1) > CONTENT)
    columns = np.flatnonzero(differs_HW.mean(axis=0) > CONTENT)
    if min(len(rows), len(columns)) < MIN_CONTENT_PX:
        return None
    box = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    return None if box == (0, 0, *grey_HW.shape[::-1]) else box


VIEWS = {"content": content, "altered": altered}
