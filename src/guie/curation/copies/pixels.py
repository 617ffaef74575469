"""Pictures compared by their pixels, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from guie.curation.copies.alterations import altered_copies
from guie.data.images import open_as_seen
from guie.data.looks.alignment import working
from guie.data.looks.decoding import mapped
from guie.data.looks.difference import compare, compare_files


class Pixels(NamedTuple):
    """Differences between images below a folder, as `difference.compare` measures them."""

    root: Path
    workers: int

    def between(self, pairs: Sequence[tuple[str, str]], mirrored: bool) -> np.ndarray:
        """(P,) differences of pairs of paths. Raises UserError naming what cannot be decoded."""
        return self._all(partial(_between, self.root, mirrored), pairs, "copies", "pair")

    def altered(self, paths: Sequence[str]) -> np.ndarray:
        """(3 N,) differences between each image and altered copies of it."""
        numbered = [*enumerate(paths)]
        return self._all(partial(_altered, self.root), numbered, "altered", "img").ravel()

    def _all(self, look: Any, asked: Sequence[Any], name: str, unit: str) -> np.ndarray:
        with tqdm(total=len(asked), desc=name, unit=unit, leave=False, disable=None) as bar:
            found = []
            for answer in mapped(look, asked, self.workers):
                found.append(answer)
                bar.update()
        return np.round(np.array(found, np.float64), 4)


def _between(root: Path, mirrored: bool, pair: tuple[str, str]) -> float:
    return compare_files(root, mirrored, pair).difference


def _altered(root: Path, numbered: tuple[int, str]) -> list[float]:
    number, path = numbered
    image = open_as_seen(root / path)
    plain = working(image)
    copies = altered_copies(image, number)
    return [compare(plain, working(copy)).difference for copy in copies]
