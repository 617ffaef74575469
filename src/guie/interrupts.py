"""SIGTERM, Ctrl-C and the end of the time as a wish that the loop grants between two steps."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

from accelerate import Accelerator

SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
        print(f"\n{self.received.name}: saving after this step", file=sys.stderr, flush=True)

    def anywhere(self, accelerator: Accelerator) -> bool:
        """Has any process got a signal, or no time left? All then stop after the same step."""
        return _anywhere(accelerator, self.received is not None or time.monotonic() > self.ends_s)

    def by_signal(self, accelerator: Accelerator) -> bool:
        """Was it a signal that made all stop? All processes call it."""
        return _anywhere(accelerator, self.received is not None)

    def leave(self) -> SystemExit:
        """The exit to raise after the checkpoint, with the code that a shell expects."""
        # Another process of the run may be the one that got the signal.
        return SystemExit(128 + (self.received or signal.SIGTERM))


def _anywhere(accelerator: Accelerator, here: bool) -> bool:
    if accelerator.num_processes == 1:
        return here
    if here:
        accelerator.set_trigger()
    return accelerator.check_trigger()
