"""Child processes (loaders, decoders) that end when asked, and with their parent."""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.context import BaseContext
from typing import Any

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


def context(method: str | None = None) -> BaseContext:
    """Python's ways to start and to join processes, with events that a killed one cannot leave locked.

    Python's own event takes a lock to be read. A loader's worker that the system kills in that moment
    keeps it for ever, and a loader that then asks whether it has ended waits as long.
    """
    own: Any = copy.copy(multiprocessing.get_context(method))
    own.Event = lambda: Flag(own)
    return own


class Flag:
    """One byte that processes share: what a loader asks of an event, and no lock."""

    def __init__(self, context: BaseContext):
        self._raised = context.RawValue(ctypes.c_bool, False)

    def set(self) -> None:
        self._raised.value = True

    def is_set(self) -> bool:
        return self._raised.value
