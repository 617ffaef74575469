"""What an image is known by: its decoded pixels and its perceptual hashes, from one decoding."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import xxhash
from PIL import Image
from tqdm import tqdm

from guie.data.looks.decoding import OpenImage, Verdict, decode, mapped
from guie.data.looks.hashes import Hashes, perceptual_hashes

COLUMNS = ["pixels", *Hashes._fields]


def fingerprints(
    paths: Sequence[str], root: Path, open_image: OpenImage, workers: int, name: str
) -> pd.DataFrame:
    """As `verify`, and what each image is known by.

    Returns:
        Columns width and height in px, reason ("" if good), pixels (see `pixel_digest`), and
        the perceptual hashes whole, content, mirrored. Indexed by path, in the given order.
    """
    look = partial(_look, os.path.realpath(root), open_image)
    rows = []
    with tqdm(total=len(paths), desc=name, unit="img", disable=None) as bar:
        for row in mapped(look, paths, workers):
            rows.append(row)
            bar.update()
    columns = ["width", "height", "reason", *COLUMNS]
    return pd.DataFrame(rows, index=list(paths), columns=columns)


def pixel_digest(image: Image.Image) -> str:
    """XXH3 of size and decoded pixels, 128 bits: equal for equal pictures, whatever the file.

    Nobody gains by forging a copy, so a hash that is no cipher does, 40 times faster than SHA-256.
    """
    digest = xxhash.xxh3_128(f"{image.mode} {image.width} {image.height} ".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()


def _look(root: str, open_image: OpenImage, image_path: str) -> tuple[str | int, ...]:
    seen: list[Image.Image] = []

    def open_and_keep(path: Path) -> Image.Image:
        seen.append(open_image(path))
        return seen[0]

    verdict: Verdict = decode(root, open_and_keep, image_path)
    if verdict[-1]:
        return (*verdict, *[""] * len(COLUMNS))
    return (*verdict, pixel_digest(seen[0]), *perceptual_hashes(seen[0]))
