"""Measure how much the pixels of two pictures differ, and store the result by the pictures' digests."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageEnhance

from guie.base.files import rows_folder
from guie.data.images import open_as_seen
from guie.rows.comparison import Working, compare, compressed, cut, working
from guie.rows.filling import OnCores, fill
from guie.rows.states import keys
from guie.rows.store import Store

VERSION = "2"  # raise it with `rows.comparison` and the alterations


def resized(image: Image.Image, scale: float) -> Image.Image:
    """Scale both sides, to at least one pixel."""
    width, height = (max(round(scale * side), 1) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


# The alterations that cleaning should find
ALTERATIONS: tuple[Callable[[Image.Image], Image.Image], ...] = (
    lambda image: compressed(image, quality=30),
    lambda image: resized(image, scale=0.5),
    lambda image: cut(image, share=0.04),
    lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    lambda image: resized(image, scale=2.0),
    lambda image: ImageEnhance.Contrast(image).enhance(0.7),
    lambda image: cut(image, share=0.02),
    lambda image: ImageEnhance.Contrast(image).enhance(1.3),
    lambda image: ImageEnhance.Brightness(image).enhance(0.7),
)
EACH = 3  # altered copies of an image


class PixelDifferences:
    """Differences by `rows.comparison.compare` between images of a table, stored by their digests."""

    def __init__(self, root: Path, workers: int, table: pd.DataFrame):
        self.root, self.workers = root, workers
        self.digests = dict(zip(table["image_path"], table["pixels"], strict=True))

    def between(self, pairs: Sequence[tuple[str, str]], mirrored: bool) -> np.ndarray:
        """Return (P,) differences of path pairs. Raises UserError for an undecodable file."""
        flip = " mirrored" if mirrored else ""
        names = [f"{self.digests[one]} {self.digests[other]}{flip}" for one, other in pairs]
        return self._stored(partial(_between, self.root, mirrored), pairs, names, ["difference"])

    def altered(self, paths: Sequence[str]) -> np.ndarray:
        """Return (3 N,) differences between each image and altered copies of it."""
        kinds = len(ALTERATIONS)
        names = [f"{self.digests[path]} altered {n % kinds}" for n, path in enumerate(paths)]
        columns = [f"copy {number}" for number in range(EACH)]
        return self._stored(partial(_altered, self.root), [*enumerate(paths)], names, columns)

    def _stored(
        self,
        measure: Callable[[Any], list[float]],
        items: Sequence[Any],
        names: Sequence[str],
        columns: list[str],
    ) -> np.ndarray:
        store = Store(rows_folder() / "differences", {"version": VERSION, "of": columns})
        fill(store, keys(names), OnCores(measure, items, columns, self.workers), title="copies")
        return store.table(keys(names), columns).to_numpy(np.float64).reshape(-1)


@lru_cache(maxsize=256)  # a few dozen MB per process; pairs are sorted
def _opened(file: Path) -> Working:
    return working(open_as_seen(file))


def _between(root: Path, mirrored: bool, pair: tuple[str, str]) -> list[float]:
    one, other = (_opened(root / path) for path in pair)
    return [round(compare(one, other, mirrored), 4)]


def _altered(root: Path, numbered: tuple[int, str]) -> list[float]:
    """Compare image `number` with its alterations; nine images use every alteration equally often."""
    number, path = numbered
    image = open_as_seen(root / path)
    plain, first = working(image), EACH * number
    chosen = [ALTERATIONS[n % len(ALTERATIONS)] for n in range(first, first + EACH)]
    return [round(compare(plain, working(alter(image))), 4) for alter in chosen]
