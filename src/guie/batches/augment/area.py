"""Random parts of an image."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from guie.data.images import Part


def random_part(draw: random.Random, scale: Sequence[float], ratio: Sequence[float]) -> Part:
    """The box of torchvision's RandomResizedCrop, in shares of the sides.

    Args:
        scale: range of the box's share of the image area.
        ratio: range of the box's aspect ratio relative to the image's, drawn in log space.
    """
    side = math.sqrt(draw.uniform(*scale))
    stretch = math.exp(draw.uniform(*map(math.log, ratio)) / 2)
    return _placed(draw, min(1.0, side / stretch), min(1.0, side * stretch))


def random_area(draw: random.Random, low: float, high: float) -> Part:
    """A box whose sides are each drawn from a range of shares of the image's."""
    return _placed(draw, draw.uniform(low, high), draw.uniform(low, high))


def _placed(draw: random.Random, height: float, width: float) -> Part:
    top, left = draw.uniform(0, 1 - height), draw.uniform(0, 1 - width)
    return Part(top, left, top + height, left + width)
