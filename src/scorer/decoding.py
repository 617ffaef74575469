"""Decode images as the host does, ahead of the model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from scorer.errors import one_line

AHEAD = 8  # images
# Excludes Pillow's readers that start programs (EPS) or that are little reviewed.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")


@dataclass(frozen=True)
class Decoded:
    """A decoded image, or why decoding failed."""

    image_path: str
    pixels_HW3: np.ndarray | None
    rotated: bool  # has an EXIF orientation, which the host ignores
    seconds: float
    fault: str = ""


def decode(path: Path) -> tuple[np.ndarray, bool]:
    """Decode an image of FORMATS as the host does: `convert("RGB")`, no EXIF turn, 16 bits clipped.

    Returns:
        The pixels, uint8 [H, W, 3], and whether an EXIF orientation was ignored.

    Raises:
        Exception: of any type; Pillow raises many for broken files.
    """
    Image.init()  # fills OPEN with the formats that this Pillow knows
    with Image.open(path, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
        pixels_HW3 = np.array(image.convert("RGB"))
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return pixels_HW3, orientation in range(2, 9)


def decoded(root: Path, image_paths: Iterable[str]) -> Iterator[Decoded]:
    """Yield decoded images in order; a thread decodes a few of them ahead."""
    waiting: deque[Future[Decoded]] = deque()
    with ThreadPoolExecutor(1, "decode") as pool:
        try:
            for image_path in image_paths:
                waiting.append(pool.submit(_decode, root, image_path))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _decode(root: Path, image_path: str) -> Decoded:
    began = time.perf_counter()
    try:
        pixels_HW3, rotated = decode(root / image_path)
    except Exception as error:  # see decode
        return Decoded(image_path, None, False, 0.0, one_line(error))
    return Decoded(image_path, pixels_HW3, rotated, time.perf_counter() - began)
