"""Measure how much the pixels of two pictures differ, and store the result by the pictures' digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from guie.base.files import rows_folder
from guie.curation.duplicates.evidence import ALTERATIONS, EACH, altered_copies
from guie.data.images import open_as_seen
from guie.rows.comparison import compare, compare_files, working
from guie.rows.filling import OnCores, fill, mapped
from guie.rows.states import keys
from guie.rows.store import Store

VERSION = "1"  # raise it with `rows.comparison` and the alterations


class Pixels:
    """Differences between images of a folder, measured by `rows.comparison.compare`.

    Args:
        digests: the `pixel_digest` of each image, by path, which the results are stored by. None: no store.
    """

    def __init__(self, root: Path, workers: int, digests: Mapping[str, str] | None = None):
        self.root, self.workers, self.digests = root, workers, digests

    def between(self, pairs: Sequence[tuple[str, str]], mirrored: bool) -> np.ndarray:
        """Return (P,) differences of path pairs. Raises UserError for an undecodable file."""
        flip = " mirrored" if mirrored else ""
        names = [f"{self._of(one)} {self._of(other)}{flip}" for one, other in pairs]
        return self._all(partial(_between, self.root, mirrored), pairs, names, ["difference"])

    def altered(self, paths: Sequence[str]) -> np.ndarray:
        """Return (3 N,) differences between each image and altered copies of it."""
        names = [f"{self._of(path)} altered {n % len(ALTERATIONS)}" for n, path in enumerate(paths)]
        columns = [f"copy {n}" for n in range(EACH)]
        return self._all(partial(_altered, self.root), [*enumerate(paths)], names, columns)

    def _of(self, path: str) -> str:
        return path if self.digests is None else self.digests[path]

    def _all(
        self,
        measure: Callable[[Any], list[float]],
        items: Sequence[Any],
        names: Sequence[str],
        columns: list[str],
    ) -> np.ndarray:
        if self.digests is None:
            return np.array([*mapped(measure, items, self.workers)], np.float64).reshape(-1)
        store = Store(rows_folder() / "differences", {"version": VERSION, "of": columns})
        fill(store, keys(names), OnCores(measure, items, columns, self.workers), title="copies")
        return store.table(keys(names), columns).to_numpy(np.float64).reshape(-1)


def _between(root: Path, mirrored: bool, pair: tuple[str, str]) -> list[float]:
    return [round(compare_files(root, mirrored, pair), 4)]


def _altered(root: Path, numbered: tuple[int, str]) -> list[float]:
    number, path = numbered
    image = open_as_seen(root / path)
    plain = working(image)
    copies = altered_copies(image, number)
    return [round(compare(plain, working(copy)), 4) for copy in copies]
