"""SIGTERM, Ctrl-C and the end of the time as a wish that is granted between two steps."""

from __future__ import annotations

import signal
import sys
import time
from enum import IntEnum
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Cause(IntEnum):
    """Why to stop before the end; of several causes the largest counts."""

    NONE = 0
    TIME = 1
    SIGNAL = 2
    FAULT = 3


class Interrupts:
    """Within this context the first signal is noted, and a second Ctrl-C acts at once.

    Clusters send SIGTERM and kill half a minute later; a person at a terminal presses Ctrl-C.

    Args:
        hours: how long there is time, from now on; None: for ever.
    """

    def __init__(self, hours: float | None = None) -> None:
        self.received: signal.Signals | None = None
        self.ends_s = float("inf") if hours is None else time.monotonic() + 3600 * hours

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        print(f"\n{self.received.name}: stopping after this step", file=sys.stderr, flush=True)

    def cause(self) -> Cause:
        """Is there a wish to stop in this process?"""
        if self.received is not None:
            return Cause.SIGNAL
        return Cause.TIME if time.monotonic() > self.ends_s else Cause.NONE

    @property
    def exit_code(self) -> int:
        """After a signal, as a shell expects it. Another process may be the one that got it."""
        return 128 + (self.received or signal.SIGTERM)
