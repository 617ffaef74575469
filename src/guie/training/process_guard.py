"""Stop all processes of a run together: on a signal, when the time is up, and when one of them fails."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from typing import Self

import torch
from accelerate import Accelerator
from torch import distributed

from guie.base.devices import cpu_group
from guie.base.errors import UserError

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FAILED_KEY = "guie/lost"  # a key of the store
POLL_S = 1.0
GRACE_S = 5.0  # time for a process to exit by itself, once another has failed
CONNECT_TIMEOUT = timedelta(seconds=30)


class Cause(IntEnum):
    """Why to stop early; of several causes the largest counts."""

    NONE = 0
    TIME = 1
    SIGNAL = 2
    FAULT = 3


class Interrupts:
    """Context that records the first signal, and a limit in hours; a second Ctrl-C interrupts immediately.

    Clusters send SIGTERM and kill half a minute later; a person at a terminal presses Ctrl-C.
    """

    def __init__(self, hours: float | None = None) -> None:
        self.received: signal.Signals | None = None
        self.ends_s = float("inf") if hours is None else time.monotonic() + 3600 * hours

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        print(f"\n{self.received.name}: stopping after this step", file=sys.stderr, flush=True)

    def cause(self) -> Cause:
        """Return why this process should stop, or `Cause.NONE`."""
        if self.received is not None:
            return Cause.SIGNAL
        return Cause.TIME if time.monotonic() > self.ends_s else Cause.NONE

    @property
    def exit_code(self) -> int:
        """The exit code after a signal, as a shell expects it. Another process may have received it."""
        return 128 + (self.received or signal.SIGTERM)


class Stopped(Exception):
    """Raised when all processes stop together, between two steps, by the same cause.

    The reason is what this process finally raises: its own fault, or an exit.
    """

    def __init__(self, cause: Cause, reason: BaseException):
        super().__init__(cause.name)
        self.cause, self.reason = cause, reason


class ProcessGroupGuard:
    """Context for the processes of a run: an exception in one ends all of them."""

    def __init__(self, accelerator: Accelerator, interrupts: Interrupts):
        self.accelerator, self.interrupts = accelerator, interrupts
        self.several = accelerator.num_processes > 1
        self.finished = threading.Event()
        self._group = cpu_group() if self.several else None
        self._store: distributed.Store | None = None
        if self.several:  # a connection of its own: other connections may be blocked in a wait
            place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            self._store = distributed.TCPStore(*place, is_master=False, timeout=CONNECT_TIMEOUT)

    def __enter__(self) -> ProcessGroupGuard:
        self._watch = threading.Thread(target=self._look_after_others, daemon=True)
        if self.several:
            self._watch.start()
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        try:
            self._end(raised)
        finally:
            self.finished.set()
            # A thread that asks the store while Python exits would abort the process
            if self.several:
                self._watch.join(GRACE_S)

    def _end(self, raised: BaseException | None) -> None:
        """End the other processes too; raise what this one should, if it is not what was raised."""
        if isinstance(raised, Stopped):
            # Exit together: when one process exits, a launcher ends the others, perhaps while they save.
            self.accelerator.wait_for_everyone()
            raise raised.reason from None
        if raised is None or self._store is None or isinstance(raised, SystemExit):
            return
        if not isinstance(raised, UserError) and self._another_failed():
            raise SystemExit(1) from None  # it only follows from an exception of another process
        with suppress(RuntimeError):  # the process with the store may have exited
            self._store.set(FAILED_KEY, str(self.accelerator.process_index))
        if isinstance(raised, distributed.DistError) or (
            isinstance(raised, RuntimeError) and "gloo" in str(raised).lower()
        ):
            raise UserError(
                "another process of the run has exited; run again (train.py: with --resume)"
            ) from None

    def stop(self, fault: UserError | None = None) -> Stopped | None:
        """Return why any process must stop, such as by its fault, else None.

        All processes call it, at the same step.
        """
        cause = Cause.FAULT if fault else self.interrupts.cause()
        if self.several:
            most = torch.tensor(int(cause))
            distributed.all_reduce(most, distributed.ReduceOp.MAX, self._group)
            cause = Cause(int(most.item()))
        if cause == Cause.NONE:
            return None
        codes = {Cause.TIME: 0, Cause.SIGNAL: self.interrupts.exit_code, Cause.FAULT: 2}
        return Stopped(cause, fault or SystemExit(codes[cause]))

    def check(self, fault: UserError | None = None) -> None:
        """Raise the result of `stop`, unless only the time is up: then the current work may finish."""
        stopped = self.stop(fault)
        if stopped and stopped.cause != Cause.TIME:
            raise stopped

    def _look_after_others(self) -> None:
        while not self.finished.wait(POLL_S):
            if self._another_failed() and not self.finished.wait(GRACE_S):
                sys.stderr.flush()
                os._exit(1)

    def _another_failed(self) -> bool:
        assert self._store is not None  # of several
        try:
            return self._store.check([FAILED_KEY])
        except RuntimeError:  # of the process that keeps the store
            return True
