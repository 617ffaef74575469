"""Several crops of each indexed image, so that an object is found in a part of a picture."""

import math
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
        starts, ends = [], []
        for at, px in zip((self.left, self.top), size_px, strict=True):
            starts.append(int(at * px))
            ends.append(min(max(starts[-1] + 1, math.ceil((at + self.side) * px)), px))
        return starts[0], starts[1], ends[0], ends[1]


def regions_of(count: int) -> list[Region]:
    """Return the regions of an image: the whole, then grids of crops that overlap by at least half."""
    found = [Region(0.0, 0.0, 1.0)]
    for side in GRIDS[count]:
        starts = np.linspace(0, 1 - side, math.ceil(2 * (1 - side) / side) + 1)
        found += [Region(float(left), float(top), side) for top, left in product(starts, starts)]
    return found
