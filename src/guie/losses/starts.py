"""Where class weights and proxies start.

They are normalised, so that their length means nothing to the loss; but Adam's step is absolute, and
a row of half the length turns twice as fast. Shapes: C rows, D dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from guie.config.losses import RowLength, Start


def drawn(
    rows: int, dim: int, start: Start, generator: Generator | None = None, of: int = 0
) -> Tensor:
    """Random rows (C, D) as configured.

    Args:
        rows: C, how many to draw.
        dim: D.
        start: the root mean square of the rows' lengths, or one of Xavier's rules, by which it falls
            with the number of rows: sqrt(2 D / (C + D)) (Glorot and Bengio, AISTATS 2010, eq. 16).
        generator: None: torch's global one.
        of: rows of the whole matrix that these are a part of, for Xavier's rules; 0: these are all.
    """
    if isinstance(start, RowLength):
        deviation, normal = start.length / math.sqrt(dim), start.draw == "normal"
    else:
        deviation, normal = math.sqrt(2 / ((of or rows) + dim)), start == "xavier_normal"
    values_CD = torch.empty(rows, dim)
    if normal:
        return values_CD.normal_(0.0, deviation, generator=generator)
    bound = math.sqrt(3) * deviation
    return values_CD.uniform_(-bound, bound, generator=generator)
