"""Processes that work for this one, loaders and decoders: they end when it says so, and with it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1  # of prctl(2)
LOOK_S = 1.0


def follow_parent(worker: int = 0) -> None:
    """Make this process end by its parent's word, or with it, and by nothing else.

    A terminal sends Ctrl-C to every process of a run, and many clusters send SIGTERM to all: what a
    loader still owes is needed for the parent's last step. But SIGTERM from the parent must be heard,
    for by it Python ends its children on the way out, and then waits for them.

    Args:
        worker: the number that a loader hands to what sets up its workers; of no use here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # of who forked it: of a server, too
    # Blocked here and in every later thread, SIGTERM waits for the one thread that asks who sent it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_leave_when_told, daemon=True).start()


def _leave_when_told() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this process follows one
    while parent.is_alive():
        received = signal.sigtimedwait({signal.SIGTERM}, LOOK_S)
        if received and received.si_pid == parent.pid:
            break
    os._exit(128 + signal.SIGTERM)
