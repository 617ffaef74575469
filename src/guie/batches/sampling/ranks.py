"""The share of one process in the global batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch

from guie.batches.sampling.sampler import Sampler
from guie.batches.sampling.streams import key

T = TypeVar("T")


class _RankSteps(torch.utils.data.Sampler[T]):
    """What one process takes of the global batches from `start_step` on.

    Process r of n takes positions r, r + n, r + 2n ...
    """

    def __init__(self, sampler: Sampler, start_step: int, end_step: int, rank: int, ranks: int):
        self.sampler, self.steps = sampler, range(start_step, end_step)
        self.rank, self.ranks = rank, ranks

    def __len__(self) -> int:
        return len(self.steps)


class RankBatches(_RankSteps[list[tuple[int, int, int]]]):
    """The batches of one process from `start_step` on, as a DataLoader's batch sampler.

    Yields lists of (step, position in the global batch, row): what a sample's augmentation may
    depend on.
    """

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        for step in self.steps:
            rows = self.sampler.batch(step)
            positions = range(self.rank, len(rows), self.ranks)
            yield [(step, position, int(rows[position])) for position in positions]


class RankDraws(_RankSteps[tuple[np.ndarray, np.ndarray]]):
    """The same batches for a loader of whole batches.

    Yields (how often the stage drew each row before, rows), both in the order of positions.
    """

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for step in self.steps:
            visits, rows = self.sampler.draw(step)
            yield visits[self.rank :: self.ranks], rows[self.rank :: self.ranks]


class RankViews(_RankSteps[list[tuple[int, int, int]]]):
    """The same batches of fixed views of an image, each in turn, as a DataLoader's batch sampler.

    Yields lists of (view, number of the image by its path, row).

    Args:
        views: of an image.
        paths: of the rows.
    """

    def __init__(self, draws: RankDraws, views: int, paths: Sequence[str] | np.ndarray):
        steps = draws.steps
        super().__init__(draws.sampler, steps.start, steps.stop, draws.rank, draws.ranks)
        self.draws, self.views, self.paths = draws, views, paths

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        for visits_B, rows_B in self.draws:
            pairs = zip(visits_B.tolist(), rows_B.tolist(), strict=True)
            yield [(visit % self.views, key(self.paths[row]), row) for visit, row in pairs]
