"""Compute the rows that a store lacks, block by block: the one resumable driver, here or on a Ray cluster.

On Ray, actors open a model once. Only the driver lists the images and asks the store what is missing. It
hands out the blocks that a single job would compute, so the rows have the same bits.
"""

import copy
import logging
import os
import socket
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from guie.base.errors import UserError, optional_module
from guie.base.network import ANSWER_S, answered
from guie.base.processes import ENGINE, children_block_sigterm, follow_parent
from guie.rows.states import States
from guie.rows.store import Store, Writer

CHUNK = 64  # items given to a worker at once
START_S = 30  # after which a cluster that starts no actor is reported

Positions = Sequence[int] | np.ndarray
# Computes and writes the rows of some positions among items, and returns what `Remote.done` takes.
ComputeItems = Callable[[Sequence[Any], np.ndarray, Writer], Any]
T = TypeVar("T")
R = TypeVar("R")


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


class Compute:
    """Computes the rows of positions in a list of states, by default in one process."""

    process = (0, 1)  # this one, and of how many that share a part
    remote: Remote | None = None  # for Ray, if it may compute them

    def starts(self, count: int, parts: int) -> Sequence[int] | range:
        """Return where each block of a list begins; the batches in them must not depend on the parts."""
        raise NotImplementedError

    def agreed(self, make: Callable[[], T]) -> T:
        """Run `make` in one process and return its result in every process."""
        return make()

    def __call__(self, blocks: Sequence[np.ndarray], write: Writer, title: str) -> None:
        """Compute the rows of each block, and write them by its positions."""
        raise NotImplementedError


def fill(
    store: Store,
    states: States,
    compute: Compute,
    *,
    part: tuple[int, int] = (0, 1),
    without: Positions = (),
    title: str = "",
) -> np.ndarray:
    """Compute and store the missing rows of part n of m; return their positions.

    Blocks are cut from the full list of states. So a resumed job, and m jobs, compute the same rows together
    as a single job does, with the same bits. The next block is computed while one is written: a killed job
    loses at most these two. A stopped job writes the last complete block before this function raises.
    Positions in `without` cannot be computed.

    Raises UserError if the store cannot be written, and whatever `compute` raises.
    """
    missing = np.setdiff1d(compute.agreed(lambda: store.missing(states)), without)
    starts = compute.starts(len(states), part[1])
    blocks = own_blocks(missing, starts, part)
    if blocks:  # an unwritable folder fails here, before hours of computing
        compute.agreed(store.begin)
    if part[1] > 1:
        compute.agreed(lambda: store.divide(states, part[1]))
    if on_ray() and compute.remote and blocks:
        fill_with_ray(store, states, blocks, starts, compute.remote, title)
        return np.concatenate(blocks)
    first, processes = compute.process
    with Writer(store, states) as write:
        compute(blocks[first::processes], write, title)
    compute.agreed(lambda: None)
    return np.concatenate([np.empty(0, np.int64), *blocks])


def missing_parts(
    store: Store, states: States, compute: Compute, parts: int, without: Positions = ()
) -> list[int]:
    """Return which of m parts lack rows. Raises UserError if the list is divided into others."""
    store.divide(states, parts)
    missing = np.setdiff1d(store.missing(states), without)
    starts = compute.starts(len(states), parts)
    cut = (own_blocks(missing, starts, (number, parts)) for number in range(parts))
    return [number for number, blocks in enumerate(cut) if blocks]


def own_blocks(
    missing: np.ndarray, starts: Sequence[int] | range, part: tuple[int, int]
) -> list[np.ndarray]:
    """Return the missing positions of each block of part n of m; blocks without any are left out."""
    block_M = np.searchsorted(starts, missing, "right") - 1
    mine_M = block_M % part[1] == part[0]
    own, block_M = missing[mine_M], block_M[mine_M]
    return [*np.split(own, np.flatnonzero(np.diff(block_M)) + 1)] if len(own) else []


class OnCores(Compute):
    """Computes records in processes of one thread each.

    Args:
        look: takes an item, and returns a value for each column.
        items: one for each of the states.
        unit_name: of an item, in the progress bar.
    """

    most = 1024  # records of a block: a stopped job loses at most so many

    def __init__(
        self,
        look: Callable[[Any], Sequence[Any]],
        items: Sequence[Any] | np.ndarray,
        columns: Sequence[str],
        workers: int,
        unit_name: str = "img",
    ):
        self.look, self.items, self.columns = look, items, list(columns)
        self.workers, self.unit_name = workers, unit_name
        self.remote = Remote(partial(_open_on_a_core, look, self.columns), items)

    def starts(self, count: int, parts: int) -> range:
        return range(0, count, max(1, min(self.most, -(-count // parts))))

    def __call__(self, blocks: Sequence[np.ndarray], write: Writer, title: str) -> None:
        asked = [self.items[row] for block in blocks for row in block]
        with tqdm(total=len(asked), desc=title, unit=self.unit_name, disable=None) as bar:
            found = mapped(self.look, asked, self.workers, done=bar.update)
            for block in blocks:
                rows = [*islice(found, len(block))]
                write(block, pd.DataFrame(rows, columns=self.columns))


def _open_on_a_core(look: Callable[[Any], Sequence[Any]], columns: list[str]) -> ComputeItems:
    """Return what computes records in an actor of Ray."""

    def compute(items: Sequence[Any], missing: np.ndarray, write: Writer) -> None:
        OnCores(look, items, columns, workers=1)([missing], write, "")

    return compute


def mapped(
    look: Callable[[T], R],
    asked: Sequence[T],
    workers: int,
    chunk: int = CHUNK,
    done: Callable[[], Any] = lambda: None,
) -> Iterator[R]:
    """Run `map` in `workers` processes of one thread each, in order; each takes `chunk` items at once.

    Raises UserError if one of them was killed.
    """
    with threadpool_limits(1):  # before the fork, and here too, so that all sums have one order
        if workers <= 1 or len(asked) <= chunk:
            for item in asked:
                yield look(item)
                done()
            return
        # Processes, not threads: silencing Pillow's warnings is not thread-safe.
        with ProcessPoolExecutor(workers, initializer=follow_parent) as pool:
            try:
                with children_block_sigterm():  # it starts them at this call
                    results = pool.map(look, asked, chunksize=chunk)
                for found in results:
                    yield found
                    done()
            except BrokenProcessPool:
                killed = "a process that decodes images was killed, perhaps because memory ran out"
                raise UserError(f"{killed}; use fewer than {workers} workers") from None


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
        """Compute and store the rows of positions in a block, which begins at `first`; or return why not."""
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
    absolute = copy.copy(store)
    absolute.folder = store.folder.absolute()  # workers have another working folder
    actors = [actor.remote(absolute, remote.open) for _ in range(count)]

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
    if host and port.isdecimal():
        # Ray itself tries for minutes, without a word
        try:
            server = host.strip("[]"), int(port)
            answered(partial(socket.create_connection, server, ANSWER_S)).close()
        except (OSError, OverflowError, ValueError) as error:
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
