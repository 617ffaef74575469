"""Which images a step trains on: a pure function of (seed, step), whatever came before.

Nothing here has state, so a resumed run needs the step alone, and the global batch is the same
for any number of processes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
import torch


class Stream:
    """Rows in endless shuffled passes: every row once before any row twice."""

    def __init__(self, rows: np.ndarray, seed: Sequence[int]):
        self.rows, self.seed = rows, tuple(seed)
        # A batch touches at most two passes, or several where the domain is small.
        self._pass = lru_cache(maxsize=4)(self._shuffle)

    def _shuffle(self, number: int) -> np.ndarray:
        return np.random.default_rng([*self.seed, number]).permutation(self.rows)

    def take(self, start: int, count: int) -> np.ndarray:
        """Rows at positions start .. start + count - 1 of the endless stream."""
        taken = []
        while count > 0:
            number, offset = divmod(start, len(self.rows))
            part = self._pass(number)[offset : offset + count]
            taken.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(taken)


class Sampler:
    """Global batches of a stage; an epoch is about as many images as there are.

    Kinds: `mixed`, every image equally likely, domains mixed in a batch; `dataset_size` and
    `round_robin`, batches of one domain, in proportion to its size (at least one step an epoch)
    or in turn (UnED 4.1).

    Args:
        domain_of_row: the domain of each training row, in manifest order.
        kind: one of the kinds above.
        batch_size: images in a global batch.
        seed: integers that tell this stage's draws from all others.
    """

    def __init__(self, domain_of_row: pd.Series, kind: str, batch_size: int, seed: Sequence[int]):
        rows = domain_of_row.groupby(domain_of_row, sort=True).indices
        self.kind, self.batch_size, self.seed = kind, batch_size, tuple(seed)
        self.domains = list(rows)
        self.sizes = np.array([len(rows[d]) for d in self.domains])
        self.streams = [Stream(rows[d], (*seed, _key(d))) for d in self.domains]
        self.all = Stream(np.arange(len(domain_of_row)), (*seed, _key("all")))
        self.steps_of = np.maximum(1, np.round(self.sizes / batch_size)).astype(int)
        self.steps_per_epoch = int(self.steps_of.sum())
        self._plan = lru_cache(maxsize=2)(self._plan_epoch)

    def batch(self, step: int) -> np.ndarray:
        """Row numbers of the global batch of this step, length `batch_size`."""
        if self.kind == "mixed":
            return self.all.take(step * self.batch_size, self.batch_size)
        if self.kind == "round_robin":
            visit, domain = divmod(step, len(self.domains))
        else:
            domain, visit = self._by_size(step)
        return self.streams[domain].take(visit * self.batch_size, self.batch_size)

    def _by_size(self, step: int) -> tuple[int, int]:
        epoch, offset = divmod(step, self.steps_per_epoch)
        plan = self._plan(epoch)
        domain = int(plan[offset])
        before = epoch * int(self.steps_of[domain]) + int((plan[:offset] == domain).sum())
        return domain, before

    def _plan_epoch(self, epoch: int) -> np.ndarray:
        order = np.repeat(np.arange(len(self.domains)), self.steps_of)
        return np.random.default_rng([*self.seed, _key("plan"), epoch]).permutation(order)


class RankBatches(torch.utils.data.Sampler):
    """The batches of one process from `start_step` on, as a DataLoader's batch sampler.

    Yields lists of (step, position in the global batch, row): what a sample's augmentation may
    depend on. Process r of n takes positions r, r + n, r + 2n ...
    """

    def __init__(self, sampler: Sampler, start_step: int, end_step: int, rank: int, ranks: int):
        self.sampler, self.steps = sampler, range(start_step, end_step)
        self.rank, self.ranks = rank, ranks

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        for step in self.steps:
            rows = self.sampler.batch(step)
            positions = range(self.rank, len(rows), self.ranks)
            yield [(step, position, int(rows[position])) for position in positions]


def _key(name: str) -> int:
    return zlib.crc32(name.encode())
