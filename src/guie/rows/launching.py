"""Compute the missing rows of a store on a Ray cluster: its actors open a model once, and Ray retries.

Only the driver lists the images and asks the store what is missing. It hands out the blocks that a single
job would compute, so the rows have the same bits, and a driver that is started again goes on.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
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

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Compute one block; return how many rows, or why it cannot be."""
        block: Block = row["block"]
        try:
            with Writer(self.store, block.states) as write:
                self.of(block.items)([block.missing], write, "")
        except UserError as error:
            return {"rows": 0, "fault": str(error)}
        return {"rows": len(block.missing), "fault": ""}


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
    optional_module("ray.data", "--engine ray", "ray")
    ends = [*starts[1:], len(states)]

    def cut(positions: np.ndarray) -> dict[str, Block]:
        block = bisect_right(starts, int(positions[0])) - 1
        whole = range(starts[block], ends[block])
        items = [remote.items[row] for row in whole]
        return {"block": Block(states.take(np.array(whole)), items, positions - whole.start)}

    try:
        for name in ("ray", "ray.data"):  # a page of notes for each step
            logging.getLogger(name).setLevel(logging.ERROR)
        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        cluster = ray.cluster_resources()
        gpus = int(cluster.get("GPU", 0))
        actors = max(1, min(gpus or int(cluster["CPU"]), len(blocks)))
        data = ray.data.from_items([*map(cut, blocks)], override_num_blocks=len(blocks)).map(
            Worker,
            fn_constructor_args=(store.absolute(), remote.open),
            num_gpus=1 if gpus else None,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=actors),
        )
        rows = sum(map(len, blocks))
        with tqdm(total=rows, desc=f"{title} ({actors} actors)", unit="img", disable=None) as bar:
            for done in data.iter_rows():
                if done["fault"]:
                    raise UserError(done["fault"])
                bar.update(done["rows"])
    except ray.exceptions.RayError as error:
        line = str(error).strip().splitlines()[-1]
        raise UserError(f"Ray: {line}; computed rows stay, and the same command goes on") from None


def on_ray() -> bool:
    """Return whether `--engine ray` was given."""
    return os.environ.get(ENGINE) == "ray"
