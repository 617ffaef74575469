"""Draw the global batches of a stage, and each process's part of them. Shapes: D domains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from guie.base.errors import UserError
from guie.config.sampling import (
    DomainSamplerConfig,
    LossDrivenConfig,
    MixedConfig,
    RoundRobinConfig,
    SamplerConfig,
    ShardsConfig,
    sampler_config,
)
from guie.data.columns import StringColumn
from guie.data.sampling.domains import Cyclic, LossDriven, Plan, Shuffled, domain_shares
from guie.data.sampling.streams import Draws, Pool, ShardStream, key, make_pools, merged


class RankBatches:
    """The batches of one process from `start_step` on, as a DataLoader's batch sampler.

    Of a global batch, process r of n takes the positions r, r + n, r + 2n ... Yields lists of (step,
    position in the global batch, row), which may seed a sample's augmentation.
    """

    def __init__(self, sampler: Sampler, start_step: int, end_step: int, rank: int, ranks: int):
        self.sampler, self.steps = sampler, range(start_step, end_step)
        self.rank, self.ranks = rank, ranks

    def __len__(self) -> int:
        return len(self.steps)

    def draws(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (how often the stage drew each row before, rows), both in the order of positions."""
        for step in self.steps:
            visits, rows = self.sampler.draw(step)
            yield visits[self.rank :: self.ranks], rows[self.rank :: self.ranks]

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        for step, (_, rows) in zip(self.steps, self.draws(), strict=True):
            yield [(step, self.rank + n * self.ranks, row) for n, row in enumerate(rows.tolist())]


class RankViews(RankBatches):
    """The same batches, cycling through each image's fixed views, as a DataLoader's batch sampler.

    Yields lists of (view, number of the image by its path, row).

    Args:
        views: number of views per image.
        paths: image path of each row.
    """

    def __init__(self, batches: RankBatches, views: int, paths: StringColumn | Sequence[str]):
        steps = batches.steps
        super().__init__(batches.sampler, steps.start, steps.stop, batches.rank, batches.ranks)
        self.views, self.paths = views, paths

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        for visits_B, rows_B in self.draws():
            pairs = zip(visits_B.tolist(), rows_B.tolist(), strict=True)
            yield [(visit % self.views, key(self.paths[row]), row) for visit, row in pairs]


class Sampler:
    """Global batches of a stage. An epoch has as many images as the training set, or their weights' sum.

    A batch is a pure function of (seed, step); if the sampler `learns`, also of its state.

    * Every batch is full: the images of a small domain repeat.
    * Within a domain, every image occurs once before any occurs twice. With weights see
      `WeightedStream`; with `images_per_class` see `ClassStream`.
    * A domain has its share of the steps, exact to one step over any number of epochs (`loss_driven`:
      periods), and at least one step in each. In mixed batches the same holds of images or K-tuples.
    * `mixed` without temperature and factors is one stream of all images, regardless of domain.
    * `shards` is one stream too, see `ShardStream`.

    With `images_per_class` K, a batch is P = batch_size / K classes of K consecutive images. The classes
    are distinct if a domain has at least P. Exception: under `mixed` with temperature or factors, a class
    may occur twice in the batch in which a pass over its domain's classes ends.

    Args:
        domain_of_row: the domain of each training row, in manifest order.
        sampler: its config, or a name such as `mixed`.
        batch_size: images in a global batch.
        seed: integers unique to this stage's draws.
        label_of_row: the class of each row; only `images_per_class` needs it.
        weight_of_row: positive number of draws of each row per epoch; None: each once.
        shard_of_row: the shard of each row; only `shards` needs it.

    Attributes: `left_out`, the number of rows in classes with too few images.

    Raises:
        UserError: if the config names unknown domains, or a batch cannot be filled as configured.
    """

    def __init__(
        self,
        domain_of_row: pd.Series,
        sampler: SamplerConfig | str,
        batch_size: int,
        seed: Sequence[int],
        *,
        label_of_row: pd.Series | None = None,
        weight_of_row: pd.Series | None = None,
        shard_of_row: pd.Series | None = None,
    ):
        given = sampler_config(sampler)
        config = MixedConfig() if isinstance(given, ShardsConfig) else given
        self.seed, self.images = tuple(seed), _images_per_class(config, batch_size)
        pools = make_pools(config, domain_of_row, label_of_row, weight_of_row)
        # The same for every kind, so that equal epochs mean equal steps in a comparison.
        steps = sum(max(1, round(pool.size / batch_size)) for pool in pools)
        self.left_out = len(domain_of_row) - sum(len(pool.rows) for pool in pools)
        one_stream = isinstance(config, MixedConfig) and config.one_stream
        pools = [merged(pools)] if one_stream else pools
        mixes = isinstance(config, MixedConfig) and not one_stream
        self.unit = self.images if mixes else batch_size  # images per unit of one domain
        classes = 1 if mixes else batch_size // self.images
        self.domains, self.steps_per_epoch = [pool.domain for pool in pools], steps
        self.plan = _plan(config, pools, steps, batch_size // self.unit, self.seed)
        self.streams: list[Draws]
        if isinstance(given, ShardsConfig):
            del pools  # 40 MB for ten million rows
            shard_N = _shard_numbers(shard_of_row, weight_of_row)
            self.streams = [ShardStream(shard_N, given.window, seed)]
        else:
            self.streams = [pool.stream(seed, classes, self.images) for pool in pools]

    def batch(self, step: int) -> np.ndarray:
        """Return the row numbers of this step's global batch, length `batch_size`."""
        return self.draw(step)[1]

    def draw(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return this step's global batch: (how often the stage drew each row before, row numbers)."""
        taken_D, before_D = self.plan.at(step)
        draws = [
            np.stack(self.streams[d].draw(before_D[d] * self.unit, taken_D[d] * self.unit), axis=1)
            for d in np.flatnonzero(taken_D)
        ]
        if len(draws) > 1:
            # Micro-batches are cut from a batch in order: each would contain only one domain.
            tuples = np.concatenate(draws).reshape(-1, self.images, 2)
            rng = np.random.default_rng([*self.seed, key("order"), step])
            draws = [rng.permutation(tuples).reshape(-1, 2)]
        visits, rows = draws[0].T
        return visits, rows

    def shares(self, step: int) -> dict[str, float]:
        """Return the share of each domain in the batches around this step."""
        return dict(zip(self.domains, self.plan.shares(step).tolist(), strict=True))

    @property
    def learns(self) -> bool:
        """Whether losses decide later batches, so that `note` and the state matter."""
        return isinstance(self.plan, LossDriven)

    def note(self, step: int, loss: Tensor | float) -> None:
        """Record the loss of the global batch, equal in every process, for each step once, in order.

        Only a sampler that learns uses it.
        """
        if isinstance(self.plan, LossDriven):
            self.plan.note(step, loss)

    def state(self) -> dict[str, Any]:
        """Return the state to checkpoint: lists of numbers by name; empty unless the sampler learns."""
        return self.plan.state() if isinstance(self.plan, LossDriven) else {}

    def load(self, state: dict[str, Any]) -> None:
        """Resume from the state of a sampler with the same arguments; if empty, from the beginning."""
        if isinstance(self.plan, LossDriven) and state:
            self.plan.load(state)


def _plan(
    config: DomainSamplerConfig, pools: Sequence[Pool], steps: int, units: int, seed: Sequence[int]
) -> Plan:
    """Return the plan of a config, one pool per domain; units per step over all domains."""
    domains = [pool.domain for pool in pools]
    if isinstance(config, RoundRobinConfig):
        return Cyclic(len(domains))
    if isinstance(config, LossDrivenConfig):
        return LossDriven(domains, config, seed)
    size_D = np.array([pool.size for pool in pools], dtype=float)
    return Shuffled(domain_shares(config, domains, size_D), steps, units, seed)


def _shard_numbers(shard_of_row: pd.Series | None, weight_of_row: pd.Series | None) -> np.ndarray:
    """Return a number for the shard of each row. Raises UserError without shards, or with weights."""
    if shard_of_row is None:
        raise UserError(
            "stages: sampler: shards needs an index of shards as data.manifest; write one by"
            " curate.py --shards, or choose another sampler"
        )
    if weight_of_row is not None:
        raise UserError(
            "stages: sampler: shards draws all images equally often, but the manifest has a weight"
            " column; choose another sampler"
        )
    return StringColumn(shard_of_row).encoded()[0]


def _images_per_class(config: DomainSamplerConfig, batch_size: int) -> int:
    images = config.images_per_class or 1
    if batch_size % images:
        allowed = [str(n) for n in range(1, batch_size + 1) if batch_size % n == 0]
        raise UserError(
            f"stages: batch_size {batch_size} is no multiple of sampler.images_per_class {images};"
            f" it can be {', '.join(allowed)}"
        )
    return images
