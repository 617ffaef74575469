"""Copies with known truth: pictures that are altered as the web alters them, among others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
from PIL import Image, ImageEnhance, ImageOps

from guie.curation.duplicates.comparing import Pixels
from guie.data.images import open_as_seen
from guie.rows.checks import FINGERPRINTS, Checks
from guie.rows.comparison import compressed, cut

ALTERATIONS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG quality 30": partial(compressed, quality=30),
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2)),
    "cut by 2 % a side": partial(cut, share=0.02),
    "cut by 4 % a side": partial(cut, share=0.04),
    "brighter by 30 %": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "more contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.3),
    "squashed to 80 %": lambda image: image.resize((image.width, round(0.8 * image.height))),
    "white border": lambda image: ImageOps.expand(image, max(image.size) // 10, "white"),
    "black border": lambda image: ImageOps.expand(image, max(image.size) // 12, "black"),
}


def plant(table: pd.DataFrame, root: Path, folder: str, every: int) -> pd.DataFrame:
    """Save an altered copy of every so-many-th image, one alteration after another.

    Returns rows as of `table`, with image_path of the copy, and the columns original and how.
    """
    chosen = table.iloc[::every]
    how = [list(ALTERATIONS)[n % len(ALTERATIONS)] for n in range(len(chosen))]
    paths = [f"{folder}/{n:04d}.png" for n in range(len(chosen))]
    (root / folder).mkdir(parents=True)
    for path, original, name in zip(paths, chosen["image_path"], how, strict=True):
        ALTERATIONS[name](open_as_seen(root / original)).save(root / path)
    return chosen.assign(original=chosen["image_path"], how=how, image_path=paths)


def known(table: pd.DataFrame, root: Path, workers: int = 1) -> pd.DataFrame:
    """The table with the fingerprints of each image."""
    checks = Checks(FINGERPRINTS, root, table["image_path"].unique())
    checks.fill(workers, "fingerprints")
    prints = checks.table().reindex(table["image_path"]).set_axis(table.index)
    return table.assign(**prints).reset_index(drop=True)


def pixels_of(table: pd.DataFrame, root: Path, workers: int = 1) -> Pixels:
    """The comparison of the images of a `known` table."""
    return Pixels(root, workers, table)
