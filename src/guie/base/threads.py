"""Give faiss the cores of this machine where a launcher left it one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import faiss

from guie.base.processes import usable_cores

# Set by `accelerate launch` and by torchrun, which also set OMP_NUM_THREADS=1.
LAUNCHED = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")

_entered: ContextVar[bool] = ContextVar("_entered", default=False)


@contextmanager
def search_threads(processes: int = 1) -> Iterator[None]:
    """Run the searches of the block with all cores that this process may use, then restore the threads.

    By default the other processes of a run wait meanwhile. The outermost of several nested blocks decides.
    Without a launcher, and with any OMP_NUM_THREADS but 1, nothing changes: faiss takes all cores then,
    or as many as the user chose. A launcher's 1 looks the same as a user's.

    Args:
        processes: how many processes of this machine search at the same time, and share its cores.
    """
    launched = any(name in os.environ for name in LAUNCHED)
    if not launched or os.environ.get("OMP_NUM_THREADS") != "1" or _entered.get():
        yield
        return
    before, entered = faiss.omp_get_max_threads(), _entered.set(True)
    faiss.omp_set_num_threads(max(1, usable_cores() // processes))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
        _entered.reset(entered)
