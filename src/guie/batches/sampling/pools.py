"""The rows of each domain, ready to be drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.batches.sampling.streams import ClassStream, Stream, WeightedStream, key
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
