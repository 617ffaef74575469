"""Compute 64-bit perceptual hashes of a picture. Shapes: H height, W width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.fft import dctn

from guie.rows.comparison import content, cut, reduction

SIDE_PX = 32
FLAT = 2.0  # standard deviation in grey levels below which a picture has no structure to hash
# Reflection negates the odd horizontal frequencies of a cosine transform (type II).
REFLECTED = np.where(np.arange(1, 9) % 2, -1, 1)


class Hashes(NamedTuple):
    """Perceptual hashes of 16 hex digits each, or empty if there is no structure to hash."""

    whole: str
    content: str  # without a plain border
    centre: str  # cropped at every side
    mirrored: str  # `content` mirrored left to right


def perceptual_hashes(image: Image.Image) -> Hashes:
    """Return the hashes of an RGB picture."""
    grey = image.convert("L").reduce(reduction(image))
    within = content(grey)
    outer = _frequencies(grey)
    inner = outer if within is grey else _frequencies(within)
    return Hashes(
        whole=_hash(outer),
        content=_hash(inner),
        centre=_hash(_frequencies(cut(grey))),
        mirrored=_hash(inner * REFLECTED if inner is not None else None),
    )


def hash_bytes(hashes: Iterable[str]) -> np.ndarray:
    """Convert N hashes of 16 hex digits to (N, 8) uint8."""
    return np.frombuffer(bytes.fromhex("".join(hashes)), np.uint8).reshape(-1, 8)


def _frequencies(grey: Image.Image) -> np.ndarray | None:
    """Return the lowest frequencies (8 vertical, 8 horizontal); None for a picture without structure."""
    small_HW = np.asarray(grey.resize((SIDE_PX, SIDE_PX), Image.Resampling.BILINEAR), np.float64)
    return None if small_HW.std() < FLAT else dctn(small_HW)[1:9, 1:9]


def _hash(frequencies: np.ndarray | None) -> str:
    if frequencies is None:
        return ""
    return np.packbits(frequencies > np.median(frequencies)).tobytes().hex()
