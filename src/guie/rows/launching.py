"""Compute the missing rows of a store on a Ray cluster: its actors open a model once, and Ray retries.

Only the driver lists the images and asks the store what is missing. It hands out the blocks that a single
job would compute, so the rows have the same bits, and a driver that is started again goes on.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from guie.base.arguments import ENGINE
from guie.base.errors import UserError, optional_module
from guie.rows.states import States
from guie.rows.store import Store, Writer


@dataclass(frozen=True)
class Remote:
    """What an actor needs to compute blocks.

    Attributes: `open`, called once by each actor, returns what makes a `Compute` of a block's items;
    `items`, one for each of the states.
    """

    open: Callable[[], Callable[[Sequence[Any]], Any]]
    items: Sequence[Any] | np.ndarray


@dataclass(frozen=True)
class Block:
    """A block of a list: its states and items, and the positions in it that are missing."""

    states: States
    items: Sequence[Any]
    missing: np.ndarray


class Worker:
    """An actor: computes a block, and adds it to the store itself."""

    def __init__(self, store: Store, remote: Callable[[], Callable[[Sequence[Any]], Any]]):
        self.store, self.of = store, remote()

    def add(self, block: Block) -> int | str:
        """Compute and store one block; return how many rows, or why it cannot be."""
        try:
            with Writer(self.store, block.states) as write:
                self.of(block.items)([block.missing], write, "")
        except UserError as error:
            return str(error)
        return len(block.missing)


def fill_with_ray(
    store: Store,
    states: States,
    blocks: Sequence[np.ndarray],
    starts: Sequence[int] | range,
    remote: Remote,
    title: str,
) -> None:
    """Compute and store blocks on the cluster; `blocks` are missing positions, each within one block.

    Raises UserError if Ray is not installed or fails, an item cannot be computed, or the store cannot be
    written. What is computed stays.
    """
    ray = optional_module("ray", "--engine ray", "ray")
    ends = [*starts[1:], len(states)]

    def cut(positions: np.ndarray) -> Block:
        block = bisect_right(starts, int(positions[0])) - 1
        whole = range(starts[block], ends[block])
        items = [remote.items[row] for row in whole]
        return Block(states.take(np.array(whole)), items, positions - whole.start)

    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
            line = str(error).strip().splitlines()[0]
            raise UserError(f"Ray does not start: {line}; check RAY_ADDRESS") from None
    cluster = ray.cluster_resources()
    gpus = int(cluster.get("GPU", 0))
    count = max(1, min(gpus or int(cluster["CPU"]), len(blocks)))
    # A worker or its machine may die: Ray starts it again. A block that kills four workers is at fault
    actor = ray.remote(num_cpus=1, num_gpus=int(gpus > 0), max_restarts=-1, max_task_retries=3)(
        Worker
    )
    actors = [actor.remote(store.absolute(), remote.open) for _ in range(count)]
    pool = ray.util.ActorPool(actors)
    bar = tqdm(
        total=sum(map(len, blocks)), desc=f"{title} ({count} actors)", unit="img", disable=None
    )
    try:
        with bar:
            for done in pool.map_unordered(
                lambda worker, block: worker.add.remote(cut(block)), blocks
            ):
                if isinstance(done, str):
                    raise UserError(done)
                bar.update(done)
    except ray.exceptions.RayError as error:
        line = str(error).strip().splitlines()[-1]
        raise UserError(f"Ray: {line}; computed rows stay, and the same command goes on") from None
    finally:
        for worker in actors:  # else they keep their cores until all references to them are gone
            with suppress(ray.exceptions.RayError):
                ray.kill(worker)


def on_ray() -> bool:
    """Return whether `--engine ray` was given."""
    return os.environ.get(ENGINE) == "ray"
