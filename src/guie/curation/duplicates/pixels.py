"""Measure how much the pixels of two pictures differ, and cache the result by the pictures' digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.curation.duplicates.evidence import ALTERATIONS, EACH, altered_copies
from guie.data.image_checks.comparison import compare, compare_files, working
from guie.data.image_checks.decoding import mapped
from guie.data.image_checks.stored import StoredTable, save_in_pieces, stored_folder
from guie.data.images import open_as_seen

VERSION = "1"  # raise it with `image_checks.comparison` and the alterations
COLUMNS = ["measured", "differences"]


class Pixels:
    """Differences between images of a folder, measured by `image_checks.comparison.compare`.

    Args:
        digests: the `pixel_digest` of each image, by path; results are cached by digest. None: no cache.
    """

    def __init__(self, root: Path, workers: int, digests: Mapping[str, str] | None = None):
        self.root, self.workers, self.digests = root, workers, digests
        folder = stored_folder("differences", root)
        self.stored = StoredTable(folder) if digests is not None else None

    def between(self, pairs: Sequence[tuple[str, str]], mirrored: bool) -> np.ndarray:
        """Return (P,) differences of path pairs. Raises UserError for an undecodable file."""
        flip = " mirrored" if mirrored else ""
        names = [f"{self._of(one)} {self._of(other)}{flip}" for one, other in pairs]
        measure = partial(_between, self.root, mirrored)
        return self._all(measure, pairs, names, "copies", "pair").reshape(len(pairs))

    def altered(self, paths: Sequence[str]) -> np.ndarray:
        """Return (3 N,) differences between each image and altered copies of it."""
        numbered = [*enumerate(paths)]
        names = [f"{self._of(path)} altered {n % len(ALTERATIONS)}" for n, path in numbered]
        measure = partial(_altered, self.root)
        return self._all(measure, numbered, names, "altered", "img").reshape(EACH * len(paths))

    @cached_property
    def _known(self) -> dict[str, Sequence[float]]:
        tables = self.stored.read(COLUMNS) if self.stored else ()
        return dict(chain.from_iterable(table.itertuples(index=False) for table in tables))

    def _of(self, path: str) -> str:
        return path if self.digests is None else self.digests[path]

    def _all(
        self,
        measure: Callable[[Any], list[float]],
        items: Sequence[Any],
        names: Sequence[str],
        title: str,
        unit: str,
    ) -> np.ndarray:
        """Return the differences of each item, from the cache if it has the name."""
        names = [f"{VERSION} {name}" for name in names]
        known = self._known
        absent = [pair for pair in zip(names, items, strict=True) if pair[0] not in known]

        def measured() -> Iterator[tuple[str, tuple[float, ...]]]:
            answers = mapped(measure, [item for _, item in absent], self.workers)
            with tqdm(total=len(absent), desc=title, unit=unit, leave=False, disable=None) as bar:
                for (name, _), answer in zip(absent, answers, strict=True):
                    yield name, tuple(np.round(answer, 4).tolist())
                    bar.update()

        def save(piece: list[tuple[str, tuple[float, ...]]]) -> None:
            known.update(piece)
            if self.stored:
                self.stored.add(pd.DataFrame(piece, columns=COLUMNS))

        save_in_pieces(measured(), save)
        return np.array([known[name] for name in names], np.float64)


def _between(root: Path, mirrored: bool, pair: tuple[str, str]) -> list[float]:
    return [compare_files(root, mirrored, pair)]


def _altered(root: Path, numbered: tuple[int, str]) -> list[float]:
    number, path = numbered
    image = open_as_seen(root / path)
    plain = working(image)
    copies = altered_copies(image, number)
    return [compare(plain, working(copy)) for copy in copies]
