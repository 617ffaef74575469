"""All that cleaning compares of an image: its pixels, perceptual hashes of 64 bits, and a thumbnail.

Shapes: H height, W width.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from PIL import Image
from scipy.fft import dctn

from guie.base.errors import UserError
from guie.config.types import Decode
from guie.data.images import difference, open_as_seen, whole_px
from guie.rows.checks import THUMBNAIL, VERIFY, VERSION, Check, Checks, opened
from guie.rows.comparison import VIEWS, content, cut, reduction
from guie.rows.filling import mapped

SIDE_PX = 32
FLAT = 2.0  # standard deviation in grey levels below which a picture has no structure to hash
# Reflection negates the odd horizontal frequencies of a cosine transform (type II).
REFLECTED = np.where(np.arange(1, 9) % 2, -1, 1)
THUMBNAIL_PX = 16
CACHED_VIEW = "content"  # of the thumbnails


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


def fingerprint(root: str, decode: Decode, image_path: str) -> tuple[Any, ...]:
    """Decode one image; return its row of `FINGERPRINTS`."""
    image = opened(root, decode, image_path)
    if isinstance(image, str):
        return (0, 0, image, "", "", *[""] * len(Hashes._fields), b"")
    thumbnail = thumbnail_pixels(VIEWS[CACHED_VIEW](image)).tobytes()
    about = (*whole_px(image), "", difference(image))
    return (*about, pixel_digest(image), *perceptual_hashes(image), thumbnail)


# All that cleaning compares of each image; pixels: see `pixel_digest`. Raise the number with this module,
# and `comparison.content`.
FINGERPRINTS = Check(
    "fingerprints",
    fingerprint,
    (*VERIFY.columns, "pixels", *Hashes._fields, THUMBNAIL),
    f"{VERSION}, hashes 1",
)


def pixel_digest(image: Image.Image) -> str:
    """Return the 128-bit XXH3 of size and decoded pixels: equal for equal pictures in any file format.

    Forged collisions are no concern, and it is 40 times as fast as SHA-256.
    """
    digest = xxhash.xxh3_128(f"{image.mode} {image.width} {image.height} ".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()


def thumbnails(paths: Sequence[str], view: str, root: Path, workers: int) -> np.ndarray:
    """Return (N, 768) float32 of unit length: the pixels of each image's view minus their mean.

    Those of `CACHED_VIEW` are in the records of `FINGERPRINTS`.

    Raises UserError naming a file that cannot be decoded.
    """
    if view == CACHED_VIEW:
        checks = Checks(FINGERPRINTS, root, paths)
        checks.fill(workers, "thumbnails")
        found = checks.table(["reason", THUMBNAIL])
        if (bad := found["reason"] != "").any():
            first = found[bad].iloc[0]
            raise UserError(f"{root / str(first.name)}: {first['reason']}")
        pixels = [np.frombuffer(thumbnail, np.uint8) for thumbnail in found[THUMBNAIL]]
    else:
        pixels = [*mapped(partial(_thumbnail, root, view), paths, workers)]
    rows = []
    for picture in pixels:
        row = picture.astype(np.float32)
        row -= row.mean()
        # A plain picture resembles no other
        rows.append(row / max(float(np.linalg.norm(row)), 1.0))
    return np.reshape(rows, (-1, 3 * THUMBNAIL_PX**2)).astype(np.float32)


def thumbnail_pixels(image: Image.Image) -> np.ndarray:
    """Return (768,) uint8, the pixels of an RGB picture of 16 x 16."""
    return np.asarray(image.resize((THUMBNAIL_PX, THUMBNAIL_PX), reducing_gap=2.0)).ravel()


def _thumbnail(root: Path, view: str, image_path: str) -> np.ndarray:
    return thumbnail_pixels(VIEWS[view](open_as_seen(root / image_path)))
