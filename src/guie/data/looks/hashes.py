"""Perceptual hash: 64 bits that compression, scaling and relighting hardly change.

The DCT hash of Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions (2010):
32 x 32 grey levels, the 8 x 8 lowest frequencies without the constant ones, each above or below
their median. It does not bear a border or a crop, so that views without them are hashed too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.fft import dctn

from guie.data.looks.views import centre, content, reduction

SIDE_PX = 32
FLAT = 2.0  # grey levels of spread below which a picture has no structure to be known by
# Reflection negates the odd horizontal frequencies of a cosine transform (type II).
REFLECTED = np.where(np.arange(1, 9) % 2, -1, 1)


class Hashes(NamedTuple):
    """Each 16 hex digits, or empty where there is no structure to hash."""

    whole: str
    content: str  # without a plain border
    centre: str  # cut at every side
    mirrored: str  # `content`, left and right exchanged


def perceptual_hashes(image: Image.Image) -> Hashes:
    """The hashes of an RGB picture."""
    grey = image.convert("L").reduce(reduction(image))
    within = content(grey)
    outer = _frequencies(grey)
    inner = outer if within is grey else _frequencies(within)
    return Hashes(
        whole=_hash(outer),
        content=_hash(inner),
        centre=_hash(_frequencies(centre(grey))),
        mirrored=_hash(inner * REFLECTED if inner is not None else None),
    )


def hash_bytes(hashes: Iterable[str]) -> np.ndarray:
    """N hashes of 16 hex digits -> (N, 8) uint8."""
    return np.frombuffer(bytes.fromhex("".join(hashes)), np.uint8).reshape(-1, 8)


def _frequencies(grey: Image.Image) -> np.ndarray | None:
    """The lowest frequencies, (8 vertical, 8 horizontal); None for a picture without structure."""
    small_HW = np.asarray(grey.resize((SIDE_PX, SIDE_PX), Image.Resampling.BILINEAR), np.float64)
    return None if small_HW.std() < FLAT else dctn(small_HW)[1:9, 1:9]


def _hash(frequencies: np.ndarray | None) -> str:
    if frequencies is None:
        return ""
    return np.packbits(frequencies > np.median(frequencies)).tobytes().hex()
