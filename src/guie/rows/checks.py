"""Decode every image once before it is needed: is it usable, what are its hashes, its thumbnail."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import PIL
import xxhash
from PIL import Image

from guie.base.errors import UserError
from guie.base.files import rows_folder
from guie.data.images import LIMIT, OpenImage, difference, open_as_seen, whole_px
from guie.rows.comparison import VIEWS
from guie.rows.filling import OnCores, fill, mapped
from guie.rows.hashes import Hashes, perceptual_hashes
from guie.rows.states import States, states
from guie.rows.store import Store

# Another Pillow version may read fewer files, so it decodes all again. Raise the number with images.py.
VERSION = f"2, Pillow {PIL.__version__}"
# Maps a root, a decoder and an image_path to the columns of a check, which begin with those of `VERIFY`.
Look = Callable[[str, OpenImage, str], tuple[Any, ...]]


def opened(root: str, open_image: OpenImage, image_path: str) -> Image.Image | str:
    """Return an image of a folder, or the reason that it cannot be used."""
    path = os.path.join(root, image_path)
    try:
        if _leaves(root, image_path):
            return "a link that leaves the source's folder"
        return open_image(Path(path))
    except (UserError, ValueError) as error:  # ValueError: a NUL in the path
        return str(error).replace(f"{path}: ", "", 1).replace(path, image_path)


def _leaves(root: str, image_path: str) -> bool:
    """Return whether a file's link leads out of the root, and of every folder on the way to it.

    A data set's folder may be a link out of the root; a single file inside it may not.
    """
    real = os.path.realpath(os.path.join(root, image_path))
    folders = (os.path.realpath(os.path.join(root, f)) for f in reversed(Path(image_path).parents))
    return not any(os.path.commonpath([folder, real]) == folder for folder in folders)


def decode(root: str, open_image: OpenImage, image_path: str) -> tuple[int, int, str, str]:
    """Decode one image; return width, height, the reason that it is bad or "", and its `difference`."""
    image = opened(root, open_image, image_path)
    if isinstance(image, str):
        return 0, 0, image, ""
    return *whole_px(image), "", difference(image)


def fingerprint(root: str, open_image: OpenImage, image_path: str) -> tuple[Any, ...]:
    """Decode one image; return its row of `FINGERPRINTS`."""
    image = opened(root, open_image, image_path)
    if isinstance(image, str):
        return (0, 0, image, "", "", *[""] * len(Hashes._fields), b"")
    thumbnail = thumbnail_pixels(VIEWS[CACHED_VIEW](image)).tobytes()
    about = (*whole_px(image), "", difference(image))
    return (*about, pixel_digest(image), *perceptual_hashes(image), thumbnail)


class Check(NamedTuple):
    """What is found out about each image: `VERIFY` or `FINGERPRINTS`."""

    name: str
    look: Look
    columns: tuple[str, ...]
    version: str  # rows of another version are computed again


VERIFY = Check("verified", decode, ("width", "height", "reason", "differs"), VERSION)
THUMBNAIL, THUMBNAIL_PX = "thumbnail", 16
CACHED_VIEW = "content"  # of the thumbnails
# All that cleaning compares of each image; pixels: see `pixel_digest`. Raise the number with this module,
# `hashes` and `comparison.content`.
FINGERPRINTS = Check(
    "fingerprints",
    fingerprint,
    (*VERIFY.columns, "pixels", *Hashes._fields, THUMBNAIL),
    f"{VERSION}, hashes 1",
)


class Checks:
    """The records of a check of images: stored in `GUIE_CACHE`, and shared by all runs.

    Files that cannot be read have none: they are looked at again each time.

    Args:
        root: folder whose images share a store.
        paths: of images below `root / prefix`, whose links may not leave it.
        known: `states` of the images; None: they are read here.
    """

    def __init__(
        self,
        check: Check,
        root: Path,
        paths: Sequence[str],
        open_image: OpenImage = open_as_seen,
        *,
        prefix: str = "",
        known: States | None = None,
    ):
        self.check, self.paths = check, np.asarray(paths, object)
        name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
        # What decides which images are bad
        recipe = {"version": check.version, "megapixels": os.environ.get(LIMIT, "")}
        self.store = Store(rows_folder() / check.name / name, recipe)
        # Before the files are opened, so that one that changes meanwhile is checked again next time
        names = [prefix + path for path in self.paths]
        known = states(root, names) if known is None else known
        self.states = known.of(open_image.__name__)
        self.readable = np.flatnonzero(self.states.readable_N)
        self._look = partial(check.look, os.path.realpath(root / prefix), open_image)

    def missing(self) -> np.ndarray:
        """Return the positions of images without a record."""
        return self.readable[self.store.missing(self.states.take(self.readable))]

    def fill(self, workers: int, title: str, part: tuple[int, int] = (0, 1)) -> np.ndarray:
        """Compute the missing records of part n of m, and return their positions.

        Raises UserError if the store cannot be written.
        """
        known = self.states.take(self.readable)
        compute = OnCores(self._look, self.paths[self.readable], self.check.columns, workers)
        return self.readable[fill(self.store, known, compute, part=part, title=title)]

    def table(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the records by image path, by default without thumbnails, once all are filled."""
        columns = columns or [name for name in self.check.columns if name != THUMBNAIL]
        found = self.store.table(self.states.take(self.readable), columns)
        absent = np.setdiff1d(np.arange(len(self.paths)), self.readable)
        looked = [self._look(path) for path in self.paths[absent]]
        others = pd.DataFrame(looked, columns=list(self.check.columns))[columns]
        order = np.argsort(np.concatenate([self.readable, absent]))
        rows = pd.concat([found, others], ignore_index=True) if len(absent) else found
        return rows.take(order).set_axis(pd.Index(self.paths, dtype=object))


def pixel_digest(image: Image.Image) -> str:
    """Return the 128-bit XXH3 of size and decoded pixels: equal for equal pictures in any file format.

    Forged collisions are no concern, so a non-cryptographic hash suffices, 40 times faster than SHA-256.
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
        rows.append(
            row / max(float(np.linalg.norm(row)), 1.0)
        )  # a plain picture resembles no other
    return np.reshape(rows, (-1, 3 * THUMBNAIL_PX**2)).astype(np.float32)


def thumbnail_pixels(image: Image.Image) -> np.ndarray:
    """Return (768,) uint8, the pixels of an RGB picture of 16 x 16."""
    return np.asarray(image.resize((THUMBNAIL_PX, THUMBNAIL_PX), reducing_gap=2.0)).ravel()


def _thumbnail(root: Path, view: str, image_path: str) -> np.ndarray:
    return thumbnail_pixels(VIEWS[view](open_as_seen(root / image_path)))
