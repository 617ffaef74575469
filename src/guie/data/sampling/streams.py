"""Endless streams of a domain's images: plain, by weight, or class by class."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.config.sampling import SamplerConfig


@dataclass(frozen=True)
class Pool:
    """The rows of a domain, with the class or the weight of each where that matters."""

    domain: str
    rows: np.ndarray
    classes: np.ndarray | None
    weights: np.ndarray | None

    @property
    def size(self) -> float:
        """How many images, or the sum of their weights."""
        return len(self.rows) if self.weights is None else self.weights.sum()

    def stream(
        self, seed: Sequence[int], classes: int, images: int
    ) -> Stream | WeightedStream | ClassStream:
        """The images in the order in which they are trained on; P classes of K images."""
        seed = (*seed, key(self.domain))
        if self.classes is not None:
            return ClassStream(self.rows, self.classes, seed, classes=classes, images=images)
        if self.weights is not None:
            return WeightedStream(self.rows, self.weights, seed)
        return Stream(self.rows, seed)


def make_pools(
    config: SamplerConfig,
    domain_of_row: pd.Series,
    label_of_row: pd.Series | None,
    weight_of_row: pd.Series | None,
) -> list[Pool]:
    """A pool for each domain, by name. Raises UserError where one has nothing to draw from."""
    if domain_of_row.empty:
        raise UserError("stages: sampler: there is no image to train on")
    # As text: a categorical column would bring in categories without any rows.
    rows_of = domain_of_row.groupby(domain_of_row.astype(str), sort=True).indices
    if config.images_per_class is None:
        weights = None
        if config.weights and weight_of_row is not None:
            weights = weight_of_row.to_numpy(float)
        return [
            Pool(domain, rows, None, None if weights is None else weights[rows])
            for domain, rows in rows_of.items()
        ]
    if config.weights and weight_of_row is not None:
        raise UserError(
            "stages: sampler: images_per_class takes all classes of a domain equally often, and the"
            " manifest has a weight column; set weights: false to leave that aside"
        )
    if label_of_row is None:
        raise ValueError("images_per_class needs label_of_row")
    classes, _ = pd.factorize(label_of_row, sort=True)
    pools = [Pool(domain, rows, classes[rows], None) for domain, rows in rows_of.items()]
    if config.rare_classes == "repeat":
        return pools
    return [_without_rare(pool, config.images_per_class) for pool in pools]


def merged(pools: Sequence[Pool]) -> Pool:
    """One pool of them all, in manifest order, for a sampler for which domains play no part."""
    rows = np.concatenate([pool.rows for pool in pools])
    order = np.argsort(rows)

    def joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
        given = [part for part in parts if part is not None]  # all or none: pools are of one kind
        return np.concatenate(given)[order] if given else None

    classes, weights = [pool.classes for pool in pools], [pool.weights for pool in pools]
    return Pool("all", rows[order], joined(classes), joined(weights))


def _without_rare(pool: Pool, images_per_class: int) -> Pool:
    assert pool.classes is not None  # as of every pool of a sampler with images_per_class
    images_of = np.bincount(pool.classes)
    kept = images_of[pool.classes] >= images_per_class
    if not kept.any():
        raise UserError(
            f"stages: sampler: no class of {pool.domain} has images_per_class"
            f" {images_per_class} images; at most {images_of.max()} for it, or set"
            " rare_classes: repeat, or leave the domain out of the stage's domains"
        )
    return Pool(pool.domain, pool.rows[kept], pool.classes[kept], None)


class Walk:
    """An endless shuffled walk over the items 0 .. size - 1, each as often as any other.

    Positions 0, 1, 2 ... form groups of `group`, and whole groups form chunks: of as many positions
    as there are items, rounded down to whole groups, but at least one group.

    * The items of a group are different ones. Where there are fewer items than that, each stands in
      it equally often, give or take one.
    * At the end of every chunk all items were visited equally often, give or take one.
    * With groups of one, a chunk is a pass: every item once before any twice.

    Args:
        size: how many items.
        seed: integers that tell this walk from all others.
        group: how many positions belong together.
    """

    def __init__(self, size: int, seed: Sequence[int], group: int = 1):
        self.size, self.seed = size, tuple(seed)
        # Chunks follow each other round a circle of items, and each is shuffled on its own. Where
        # they end out of step with the circle, it is shuffled too: neighbours would stay together.
        self.chunk = max(size // group, 1) * group
        in_step = self.chunk % size == 0
        self.circle = None if in_step else self._rng(key("circle")).permutation(size)
        # A stretch touches one or two chunks, or many small ones.
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)

    def take(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions start .. start + count - 1: (how often each item was visited before, items)."""
        parts = []
        while count > 0:
            number, offset = divmod(start, self.chunk)
            part = self._shuffled(number)[offset : offset + count]
            parts.append(number * self.chunk + part)
            start, count = start + len(part), count - len(part)
        visits, items = divmod(np.concatenate(parts), self.size)
        return visits, items if self.circle is None else self.circle[items]

    def _shuffle(self, number: int) -> np.ndarray:
        return self._rng(number).permutation(self.chunk)

    def _rng(self, number: int) -> np.random.Generator:
        return np.random.default_rng([*self.seed, number])


class Draws(ABC):
    """An endless stream of rows."""

    @abstractmethod
    def draw(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions start .. start + count - 1: (how often each row was drawn before, rows)."""

    def take(self, start: int, count: int) -> np.ndarray:
        """Rows at positions start .. start + count - 1."""
        return self.draw(start, count)[1]


class Stream(Draws):
    """Rows in endless shuffled passes: every row once before any row twice."""

    def __init__(self, rows: np.ndarray, seed: Sequence[int]):
        self.rows, self.walk = rows, Walk(len(rows), seed)

    def draw(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        visits, items = self.walk.take(start, count)
        return visits, self.rows[items]


class WeightedStream(Draws):
    """Rows in endless shuffled passes, each row as often as its weight says.

    A pass has as many positions as the weights are in sum, to the nearest one. A row of weight w
    stands in it floor(w) or ceil(w) times, w on average: systematic sampling (Madow, 1949), with an
    offset drawn anew for every pass. The same holds of any rows that follow each other, with the sum
    of their weights, so of a class in a manifest that is ordered by class. Weights of 1 make a
    `Stream`.

    Args:
        rows: the rows.
        weight: a positive weight for each of them.
        seed: integers that tell this stream from all others.
    """

    def __init__(self, rows: np.ndarray, weight: np.ndarray, seed: Sequence[int]):
        positions = max(1, round(weight.sum()))
        self.rows, self.seed, self.walk = rows, tuple(seed), Walk(positions, seed)
        self.expected = weight * (positions / weight.sum())
        self.end = np.cumsum(self.expected)

    def draw(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """As of every stream; of the passes before this one, what is expected is counted."""
        passes, slots = self.walk.take(start, count)
        numbers, which = np.unique(passes, return_inverse=True)
        offset = np.array([self._offset(number) for number in numbers])[which]
        picked = np.searchsorted(self.end, slots + offset, side="right")
        picked = np.minimum(picked, len(self.rows) - 1)  # rounding may end short of n
        first = np.ceil(self.end[picked] - self.expected[picked] - offset)
        earlier = np.rint(passes * self.expected[picked])
        return (earlier + slots - first).astype(np.int64), self.rows[picked]

    def _offset(self, number: int) -> float:
        return np.random.default_rng([*self.seed, key("offset"), int(number)]).random()


class ClassStream(Draws):
    """Rows in tuples of K images of one class, classes equally often; for batches of P x K.

    `classes` tuples in a row, the first at position 0, are of that many different classes, and the K
    images of a tuple are different ones; where a domain has fewer classes, or a class fewer images,
    they repeat. Both are a `Walk`, of classes in groups of P and of a class's images in groups of K:
    so both come equally often.

    Args:
        rows: the rows.
        class_of_row: the class of each of them, as a number.
        seed: integers that tell this stream from all others.
        classes: P, how many tuples stand in a batch.
        images: K, how many images stand in a tuple.
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
        """As of every stream; start and count are multiples of K."""
        visits, classes = self.walk.take(start // self.images, count // self.images)
        tuples = [self._tuple(*each) for each in zip(visits, classes, strict=True)]
        visit_N, row_N = (np.concatenate(part) for part in zip(*tuples, strict=True))
        return visit_N, row_N

    def _tuple(self, visit: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.rows[self.bounds[number] : self.bounds[number + 1]]
        walk = Walk(len(rows), (*self.seed, int(number)), self.images)
        visits, items = walk.take(int(visit) * self.images, self.images)
        return visits, rows[items]


def key(name: str) -> int:
    """A number for a name, the same in every process."""
    return zlib.crc32(name.encode())
