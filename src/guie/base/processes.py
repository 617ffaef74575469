"""Child processes (loaders, decoders): how many, and that they end on request and with their parent."""

import copy
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1  # of prctl(2)
# Settings of this process and its children
ENGINE = "GUIE_ENGINE"  # ray: rows are computed by a Ray cluster
CHECK_CONTENT = "GUIE_CHECK_CONTENT"  # set: files are recognised by content, not by size and time
LOOK_S = 1.0
# Of a container: microseconds of CPU time per period, or `max`
QUOTA = Path("/sys/fs/cgroup/cpu.max")
# A loader keeps two batches ready, so each further one costs memory; 16 cores feed a fast GPU.
MOST_LOADERS = 16


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's quota."""
    bound = hasattr(os, "sched_getaffinity")  # not on a Mac
    cores = len(os.sched_getaffinity(0)) if bound else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no such file, or no quota
        used_us, period_us = map(int, QUOTA.read_text().split())
        cores = min(cores, max(1, used_us // period_us))
    return cores


def loader_count(workers: int | None, batches: int | None = None) -> int:
    """Return `workers`, or by default this process's share of the machine's cores, 1 to 16.

    The processes of a run on this machine share its cores equally. The images of a batch never depend
    on this number.

    Args:
        batches: the number of batches, if it is known: more loaders would have nothing to do.
    """
    if workers is not None:
        return workers
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # set by accelerate and torchrun
    most = MOST_LOADERS if batches is None else min(MOST_LOADERS, batches)
    return max(1, min(most, usable_cores() // ranks))


@contextmanager
def children_block_sigterm() -> Iterator[None]:
    """Start child processes within this that call `follow_parent`: all their threads block SIGTERM.

    A library may start threads in a child before it follows its parent, and such a thread would end
    the child on any SIGTERM. A child inherits what this thread blocks.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent(worker: int = 0) -> None:
    """Make this process end on its parent's SIGTERM or death, and ignore other signals to end.

    A terminal sends Ctrl-C to every process of a run, and many clusters send SIGTERM to all. But the
    parent still needs batches from its loaders for its last step. SIGTERM from the parent must work,
    because Python ends its children by it at exit, and then waits for them.

    Args:
        worker: the number that a loader passes to `worker_init_fn`; unused.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # also if a fork server forked it
    # Blocked in all threads (`children_block_sigterm`) but one, which checks the sender.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_exit_on_request, daemon=True).start()


def _exit_on_request() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this process follows one
    while parent.is_alive():
        received = signal.sigtimedwait({signal.SIGTERM}, LOOK_S)
        if received and received.si_pid == parent.pid:
            break
    os._exit(128 + signal.SIGTERM)


def context(method: str | None = None) -> BaseContext:
    """Return a multiprocessing context whose events stay usable if a process is killed.

    Reading Python's own event takes a lock. A loader worker that is killed at that moment never
    releases it, and the loader waits forever.
    """
    own: Any = copy.copy(multiprocessing.get_context(method))
    own.Event = lambda: Flag(own)
    return own


class Flag:
    """One shared byte: the part of Event that a loader uses, without a lock."""

    def __init__(self, context: BaseContext):
        self._raised = context.RawValue(ctypes.c_bool, False)

    def set(self) -> None:
        self._raised.value = True

    def is_set(self) -> bool:
        return self._raised.value
