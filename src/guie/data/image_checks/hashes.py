"""Compute an image's pixel hash, 64-bit perceptual hashes and thumbnail. Shapes: H height, W width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from PIL import Image
from scipy.fft import dctn

from guie.data.image_checks.comparison import VIEWS, content, cut, reduction
from guie.data.image_checks.decoding import (
    VERIFY,
    VERSION,
    Check,
    OpenImage,
    mapped,
    opened,
)
from guie.data.images import difference, open_as_seen, whole_px

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


COLUMNS = ["pixels", *Hashes._fields]  # pixels: see `pixel_digest`


def pixel_digest(image: Image.Image) -> str:
    """Return the 128-bit XXH3 of size and decoded pixels: equal for equal pictures in any file format.

    Forged collisions are no concern, so a non-cryptographic hash suffices, 40 times faster than SHA-256.
    """
    digest = xxhash.xxh3_128(f"{image.mode} {image.width} {image.height} ".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()


def fingerprint(root: str, open_image: OpenImage, image_path: str) -> tuple[Any, ...]:
    """Decode one image; return its row of `FINGERPRINTS`."""
    image = opened(root, open_image, image_path)
    if isinstance(image, str):
        return (0, 0, image, "", *[""] * len(COLUMNS), b"")
    thumbnail = thumbnail_pixels(VIEWS[CACHED_VIEW](image)).tobytes()
    about = (*whole_px(image), "", difference(image))
    return (*about, pixel_digest(image), *perceptual_hashes(image), thumbnail)


THUMBNAIL_PX = 16
CACHED_VIEW = "content"  # of the thumbnails in the cache
# All that cleaning compares of each image. Raise the number with this module and `comparison.content`.
FINGERPRINTS = Check(
    "fingerprints",
    fingerprint,
    (*VERIFY.columns, *COLUMNS, "thumbnail"),
    f"{VERSION}, hashes 1",
)


def thumbnails(
    paths: Sequence[str],
    view: str,
    root: Path,
    workers: int,
    cached: Mapping[str, bytes] | None = None,
) -> np.ndarray:
    """Return (N, 768) float32 of unit length: the pixels of each image's view minus their mean.

    Args:
        cached: the `thumbnail_pixels` of some of the paths, which are then not decoded.

    Raises UserError naming a file that cannot be decoded.
    """
    cached = cached or {}
    absent = [path for path in paths if path not in cached]
    computed = mapped(partial(_thumbnail, Path(root), view), absent, workers)
    rows = [
        np.frombuffer(cached[path], np.uint8) if path in cached else next(computed)
        for path in paths
    ]
    return np.reshape([*map(_normalised, rows)], (-1, 3 * THUMBNAIL_PX**2)).astype(np.float32)


def thumbnail_pixels(image: Image.Image) -> np.ndarray:
    """Return (768,) uint8, the pixels of an RGB picture of 16 x 16."""
    return np.asarray(image.resize((THUMBNAIL_PX, THUMBNAIL_PX), reducing_gap=2.0)).ravel()


def _thumbnail(root: Path, view: str, image_path: str) -> np.ndarray:
    return thumbnail_pixels(VIEWS[view](open_as_seen(root / image_path)))


def _normalised(pixels: np.ndarray) -> np.ndarray:
    row = pixels.astype(np.float32)
    row -= row.mean()
    return row / max(float(np.linalg.norm(row)), 1.0)  # a plain picture resembles no other
