"""Several crops of each indexed image, so that an object is found in a part of a picture.

Shapes: B queries, C vectors found, K images, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np

from guie.base.arguments import Corners

# Relative side lengths of the grids of crops, by the number of vectors an image has
GRIDS = {1: (), 5: (0.75,), 14: (0.75, 0.5)}


class Region(NamedTuple):
    """A crop of an image, in shares of its width and height."""

    left: float
    top: float
    side: float

    def corners(self, size_px: tuple[int, int]) -> Corners:
        """Return left, top, right and bottom in an image of this width and height; never empty."""
        starts = [int(at * px) for at, px in zip((self.left, self.top), size_px, strict=True)]
        ends = [
            min(max(start + 1, math.ceil((at + self.side) * px)), px)
            for at, start, px in zip((self.left, self.top), starts, size_px, strict=True)
        ]
        return starts[0], starts[1], ends[0], ends[1]


def grid(side: float) -> list[Region]:
    """Return square crops of this relative side that cover the image and overlap by at least half."""
    starts = np.linspace(0, 1 - side, math.ceil(2 * (1 - side) / side) + 1)
    return [Region(float(left), float(top), side) for top, left in product(starts, starts)]


def regions_of(count: int) -> list[Region]:
    """Return the regions of an image: the whole, then the grids of `GRIDS`."""
    return [Region(0.0, 0.0, 1.0), *(crop for side in GRIDS[count] for crop in grid(side))]


def vector_rows(image_rows: np.ndarray, regions: int) -> np.ndarray:
    """Return the rows of the vectors of images, which follow one another, by the images' rows."""
    return (image_rows[:, None] * regions + np.arange(regions)).ravel()


Found = tuple[np.ndarray, np.ndarray]  # rows (B, K), -1 where there is none, and similarities


class BestRegion:
    """Search images by the nearest of their regions.

    Args:
        find: returns so many nearest vectors, in order. Those of an image follow one another.
        regions: vectors of an image.
    """

    def __init__(self, find: Callable[[np.ndarray, int], Found], regions: int):
        self.find, self.regions = find, regions

    def search(self, queries_BD: np.ndarray, k: int, own_B: np.ndarray | None = None) -> Found:
        """See `guie.search.engines.Engine.search`, of images."""
        # Exact: k images and the query's own have no more vectors than these
        vectors_BC, score_BC = self.find(queries_BD, (k + 1) * self.regions)
        # An index may have fewer images than asked for
        rows_BK = np.full((len(queries_BD), min(k, vectors_BC.shape[1])), -1)
        score_BK = np.full(rows_BK.shape, -np.inf, np.float32)
        for place, (vector_C, score_C) in enumerate(zip(vectors_BC, score_BC, strict=True)):
            image_C = np.where(vector_C >= 0, vector_C // self.regions, -1)
            images, first = np.unique(image_C, return_index=True)
            own = -1 if own_B is None else own_B[place]
            kept_K = np.sort(first[(images >= 0) & (images != own)])[: rows_BK.shape[1]]
            rows_BK[place, : len(kept_K)] = image_C[kept_K]
            score_BK[place, : len(kept_K)] = score_C[kept_K]
        return rows_BK, score_BK
