"""Draw endless streams of a domain's images: uniformly, by weight, or class by class."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.config.sampling import DomainSamplerConfig
from guie.data.columns import StringColumn


@dataclass(frozen=True)
class Pool:
    """The rows of a domain, with the class or the weight of each if needed."""

    domain: str
    rows: np.ndarray
    classes: np.ndarray | None
    weights: np.ndarray | None

    @property
    def size(self) -> float:
        """The number of images, or the sum of their weights."""
        return len(self.rows) if self.weights is None else self.weights.sum()

    def stream(self, seed: Sequence[int], classes: int, images: int) -> Draws:
        """Return the images in training order, as P classes of K images if the pool has classes."""
        seed = (*seed, key(self.domain))
        if self.classes is not None:
            return ClassStream(self.rows, self.classes, seed, classes=classes, images=images)
        if self.weights is not None:
            return WeightedStream(self.rows, self.weights, seed)
        return Stream(self.rows, seed)


def make_pools(
    config: DomainSamplerConfig,
    domain_of_row: pd.Series,
    label_of_row: pd.Series | None,
    weight_of_row: pd.Series | None,
) -> list[Pool]:
    """Return a pool per domain, sorted by name. Raises UserError if one has nothing to draw from."""
    if domain_of_row.empty:
        raise UserError("stages: sampler: there is no image to train on")
    domain_N, domains = StringColumn(domain_of_row).encoded()
    rows = np.argsort(domain_N, kind="stable").astype(np.int32)
    parts = dict(zip(domains, np.split(rows, np.bincount(domain_N).cumsum()[:-1]), strict=True))
    rows_of = {domain: parts[domain] for domain in sorted(domains)}
    if config.images_per_class is None:
        if not config.weights or weight_of_row is None:
            return [Pool(domain, rows, None, None) for domain, rows in rows_of.items()]
        weights = weight_of_row.to_numpy(float)
        return [Pool(domain, rows, None, weights[rows]) for domain, rows in rows_of.items()]
    if config.weights and weight_of_row is not None:
        raise UserError(
            "stages: sampler: images_per_class draws all classes of a domain equally often, but the"
            " manifest has a weight column; set weights: false to ignore it"
        )
    assert label_of_row is not None  # `Sampler` documents it
    classes, _ = pd.factorize(label_of_row, sort=True)
    pools = [Pool(domain, rows, classes[rows], None) for domain, rows in rows_of.items()]
    if config.rare_classes == "repeat":
        return pools
    return [_without_rare(pool, config.images_per_class) for pool in pools]


def merged(pools: Sequence[Pool]) -> Pool:
    """Merge all pools into one in manifest order, for a sampler that ignores domains."""
    if len(pools) == 1:
        return replace(pools[0], domain="all")
    rows = np.concatenate([pool.rows for pool in pools])
    order = np.argsort(rows)

    def joined(column: str) -> np.ndarray | None:
        parts = [getattr(pool, column) for pool in pools]  # all or none
        return None if parts[0] is None else np.concatenate(parts)[order]

    return Pool("all", rows[order], joined("classes"), joined("weights"))


def _without_rare(pool: Pool, images_per_class: int) -> Pool:
    assert pool.classes is not None  # every pool has classes if images_per_class is set
    images_of = np.bincount(pool.classes)
    kept = images_of[pool.classes] >= images_per_class
    if not kept.any():
        fault = f"no class of {pool.domain} has images_per_class {images_per_class} images"
        raise UserError(
            f"stages: sampler: {fault}; set it to at most {images_of.max()}, or set rare_classes: repeat,"
            " or leave the domain out of the stage's domains"
        )
    return Pool(pool.domain, pool.rows[kept], pool.classes[kept], None)


class Walk:
    """An endless shuffled walk that visits the items 0 .. size - 1 equally often.

    Positions 0, 1, 2 ... form groups of `group`, and whole groups form chunks. A chunk has as many
    positions as there are items, rounded down to whole groups, but at least one group.

    * The items of a group are distinct. If there are fewer items than that, their counts in the group
      differ by at most one.
    * At the end of every chunk, the visits per item differ by at most one.
    * With groups of one, a chunk is a pass: every item once before any twice.
    """

    def __init__(self, size: int, seed: Sequence[int], group: int = 1):
        self.size, self.seed = size, tuple(seed)
        # Chunks are consecutive arcs of a circle of items, and each is shuffled on its own. If the
        # circle is no whole number of chunks, it is shuffled too, or neighbours would stay together.
        self.chunk = max(size // group, 1) * group
        in_step = self.chunk % size == 0
        self.circle = None if in_step else self._rng(key("circle")).permutation(size)
        # A range of positions touches one or two chunks, or many small ones.
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)

    def take(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (earlier visits of each item, items) at positions start .. start + count - 1."""
        parts = []
        while count > 0:
            number, offset = divmod(start, self.chunk)
            part = self._shuffled(number)[offset : offset + count]
            parts.append(number * self.chunk + part.astype(np.int64))
            start, count = start + len(part), count - len(part)
        visits, items = divmod(np.concatenate(parts), self.size)
        return visits, items if self.circle is None else self.circle[items]

    def _shuffle(self, number: int) -> np.ndarray:
        return self._rng(number).permutation(self.chunk).astype(np.int32)  # half of the memory

    def _rng(self, number: int) -> np.random.Generator:
        return np.random.default_rng([*self.seed, number])


class Stream:
    """Rows in endless shuffled passes: every row once before any row twice."""

    def __init__(self, rows: np.ndarray, seed: Sequence[int]):
        self.rows, self.walk = rows, Walk(len(rows), seed)

    def draw(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (earlier draws of each row, rows) at positions start .. start + count - 1."""
        visits, items = self.walk.take(start, count)
        return visits, self.rows[items]


class WeightedStream:
    """Rows in endless shuffled passes, each row in proportion to its weight.

    A pass has as many positions as the sum of the weights, rounded. A row of weight w occurs in it
    floor(w) or ceil(w) times, w on average: systematic sampling (Madow, 1949), with a new offset for
    every pass. The same holds of consecutive rows and the sum of their weights, and so of a class in a
    manifest ordered by class. Weights of 1 make a `Stream`.
    """

    def __init__(self, rows: np.ndarray, weight: np.ndarray, seed: Sequence[int]):
        positions = max(1, round(weight.sum()))
        self.rows, self.seed, self.walk = rows, tuple(seed), Walk(positions, seed)
        self.expected = weight * (positions / weight.sum())
        self.end = np.cumsum(self.expected)

    def draw(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw as `Stream` does; draws in earlier passes are counted by their expected number."""
        passes, slots = self.walk.take(start, count)
        numbers, which = np.unique(passes, return_inverse=True)
        seeds = [[*self.seed, key("offset"), number] for number in numbers.tolist()]
        offset = np.array([np.random.default_rng(seed).random() for seed in seeds])[which]
        picked = np.searchsorted(self.end, slots + offset, side="right")
        picked = np.minimum(picked, len(self.rows) - 1)  # rounding may end short of n
        first = np.ceil(self.end[picked] - self.expected[picked] - offset)
        earlier = np.rint(passes * self.expected[picked])
        return (earlier + slots - first).astype(np.int64), self.rows[picked]


class ClassStream:
    """Rows in tuples of K images of one class, classes equally often; for batches of P x K.

    Each run of P tuples, counted from position 0, has distinct classes, and the K images of a tuple are
    distinct. They repeat if a domain has fewer classes, or a class fewer images. Both are a `Walk`:
    classes in groups of P, and the images of a class in groups of K. So both occur equally often.

    There are P `classes` a batch and K `images` a tuple.
    """

    def __init__(
        self,
        rows: np.ndarray,
        class_of_row: np.ndarray,
        seed: Sequence[int],
        *,
        classes: int,
        images: int,
    ):
        order = np.argsort(class_of_row, kind="stable")
        _, first = np.unique(class_of_row[order], return_index=True)
        self.rows, self.bounds = rows[order], np.append(first, len(rows))
        self.seed, self.images = tuple(seed), images
        self.walk = Walk(len(first), seed, classes)

    def draw(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw as `Stream` does; start and count must be multiples of K."""
        visits, classes = self.walk.take(start // self.images, count // self.images)
        tuples = [self._tuple(*each) for each in zip(visits, classes, strict=True)]
        visit_N, row_N = (np.concatenate(part) for part in zip(*tuples, strict=True))
        return visit_N, row_N

    def _tuple(self, visit: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.rows[self.bounds[number] : self.bounds[number + 1]]
        walk = Walk(len(rows), (*self.seed, int(number)), self.images)
        visits, items = walk.take(int(visit) * self.images, self.images)
        return visits, rows[items]


class ShardStream:
    """Rows in endless passes, every row once before any row twice, from a few shards at a time.

    A pass takes the shards in random order and forms windows of so many shards; the last may have fewer.
    The rows of a window are shuffled together. Shards are numbers from 0 on; none is left out.
    """

    def __init__(self, shard_of_row: np.ndarray, window: int, seed: Sequence[int]):
        self.rows = np.argsort(shard_of_row, kind="stable").astype(np.int32)
        self.bounds = np.append(0, np.bincount(shard_of_row).cumsum())
        self.window, self.seed = window, (*seed, key("shards"))
        self._dealt = lru_cache(maxsize=2)(self._deal)
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)

    def draw(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        visits, rows = [], []
        while count > 0:
            number, offset = divmod(int(start), len(self.rows))
            _, end_W = self._dealt(number)
            window = int(np.searchsorted(end_W, offset, side="right"))
            begin = int(end_W[window - 1]) if window else 0
            part = self._shuffled(number, window)[offset - begin :][:count]
            visits.append(np.full(len(part), number))
            rows.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(visits), np.concatenate(rows)

    def _deal(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the order of the shards in a pass, and the position at which each window ends."""
        shards = np.random.default_rng([*self.seed, number]).permutation(len(self.bounds) - 1)
        sizes = np.diff(self.bounds)[shards]
        return shards, np.add.reduceat(sizes, np.arange(0, len(sizes), self.window)).cumsum()

    def _shuffle(self, number: int, window: int) -> np.ndarray:
        shards = self._dealt(number)[0][window * self.window : (window + 1) * self.window]
        rows = [self.rows[self.bounds[shard] : self.bounds[shard + 1]] for shard in shards]
        rng = np.random.default_rng([*self.seed, number, window])
        return rng.permutation(np.concatenate(rows))


# Endless streams of rows
Draws = Stream | WeightedStream | ClassStream | ShardStream


def key(name: str) -> int:
    """Return a number for a name, the same in every process."""
    return zlib.crc32(name.encode())
