"""Compute the missing rows of a store on a Ray cluster: its actors open a model once, and Ray retries.

Only the driver lists the images and asks the store what is missing. It hands out the blocks that a single
job would compute, so the rows have the same bits, and a driver that is started again resumes.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

from guie.base.arguments import ENGINE, whole_number
from guie.base.errors import UserError, optional_module
from guie.base.network import ANSWER_S, answered
from guie.rows.states import States
from guie.rows.store import Store, Writer

START_S = 30  # after which a cluster that starts no actor is reported

# Computes and writes the rows of some positions among items, and returns what `Remote.done` takes.
ComputeItems = Callable[[Sequence[Any], np.ndarray, Writer], Any]


@dataclass(frozen=True)
class Remote:
    """What an actor needs to compute blocks.

    Attributes:
        open: called once by each actor.
        items: one for each of the states.
        done: called by the driver with the positions of each block, and what was returned for them.
    """

    open: Callable[[], ComputeItems]
    items: Sequence[Any] | np.ndarray
    done: Callable[[np.ndarray, Any], None] = lambda positions, returned: None


class Worker:
    """An actor: computes blocks, and adds them to the store itself."""

    def __init__(self, store: Store, open_compute: Callable[[], ComputeItems]):
        self.store, self.open_compute = store, open_compute
        self.compute: ComputeItems | None = None

    def started(self) -> None:
        """Return as soon as the actor has its cores."""

    def add(
        self, positions: np.ndarray, first: int, states: States, items: Sequence[Any]
    ) -> tuple[np.ndarray, Any] | str:
        """Compute and store the rows of positions in a block; return why it cannot be, if so.

        Args:
            first: position at which the block begins; `states` and `items` are those of the block.
        """
        try:
            self.compute = self.compute or self.open_compute()
            with Writer(self.store, states) as write:
                return positions, self.compute(items, positions - first, write)
        except UserError as error:
            return str(error)


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
    if not ray.is_initialized():
        connect(ray)
    cluster = ray.cluster_resources()
    gpus = int(cluster.get("GPU", 0))
    count = max(1, min(gpus or int(cluster.get("CPU", 0)), len(blocks)))
    # A worker or its machine may die: Ray starts it again. A block that kills four workers is at fault
    settings = {"num_cpus": 1, "num_gpus": int(gpus > 0)}
    actor = ray.remote(max_restarts=-1, max_task_retries=3, **settings)(Worker)
    actors = [actor.remote(store.absolute(), remote.open) for _ in range(count)]

    def submit(worker: Any, positions: np.ndarray) -> Any:
        number = bisect_right(starts, int(positions[0])) - 1
        first = starts[number]
        end = starts[number + 1] if number + 1 < len(starts) else len(states)
        items = [remote.items[row] for row in range(first, end)]
        return worker.add.remote(positions, first, states.take(np.arange(first, end)), items)

    total = sum(map(len, blocks))
    try:
        started, _ = ray.wait([one.started.remote() for one in actors], timeout=START_S)
        if not started:
            needs = "a core and a GPU" if gpus else "a core"
            line = f"Ray: no worker started in {START_S} s, and each needs {needs}; waiting for other jobs"
            print(f"{line} to end (`ray status` lists what is free)", file=sys.stderr)
        with tqdm(total=total, desc=f"{title} ({count} actors)", unit="img", disable=None) as bar:
            for done in ray.util.ActorPool(actors).map_unordered(submit, blocks):
                if isinstance(done, str):
                    raise UserError(done)
                positions, returned = done
                remote.done(positions.copy(), returned)  # Ray's arrays are read-only
                bar.update(len(positions))
    except ray.exceptions.RayError as error:
        line = str(error).strip().splitlines()[-1]
        raise UserError(f"Ray: {line}; computed rows stay; run the same command again") from None
    finally:
        for worker in actors:  # else they keep their cores until all references to them are gone
            with suppress(ray.exceptions.RayError):
                ray.kill(worker)


def connect(ray: Any) -> None:
    """Connect to the cluster of RAY_ADDRESS, or start one here. Raises UserError."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and whole_number(port) is not None:
        # Ray itself tries for minutes, without a word
        try:
            server = host.strip("[]"), int(port)
            answered(partial(socket.create_connection, server, ANSWER_S)).close()
        except (OSError, OverflowError) as error:
            remedy = "run `ray start --head` there, correct the address, or unset RAY_ADDRESS"
            raise UserError(f"RAY_ADDRESS {address}: no Ray answers ({error}); {remedy}") from None
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        raise UserError(f"Ray does not start: {line}; check RAY_ADDRESS") from None


def on_ray() -> bool:
    """Return whether `--engine ray` was given."""
    return os.environ.get(ENGINE) == "ray"
