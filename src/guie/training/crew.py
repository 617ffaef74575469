"""The processes of one run: they stop together, and none outlives another by more than seconds.

Between two steps they agree on whether to stop (`Crew.stop`). Within a step a process cannot ask: it
may wait for others in an exchange that never comes. Then one that raises tells the store that all
rendezvous at, where a thread of each looks every second.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

import torch
from accelerate import Accelerator
from torch import distributed

from guie.base.errors import UserError
from guie.training.interrupts import Cause, Interrupts

LOST = "guie/lost"  # a key of the store
LOOK_S = 1.0
GRACE_S = 5.0  # of a process to leave by itself, once another is lost
REACH = timedelta(seconds=30)


class Stopped(Exception):
    """All processes stop here, together, between two steps.

    Args:
        cause: the same in all.
        reason: what this process raises in the end: the fault that it met, or an exit.
    """

    def __init__(self, cause: Cause, reason: BaseException):
        super().__init__(cause.name)
        self.cause, self.reason = cause, reason


class Crew:
    """The processes of a run, as a context: what is raised within ends all of them.

    Args:
        interrupts: the wishes of system and user.
    """

    def __init__(self, accelerator: Accelerator, interrupts: Interrupts):
        self.accelerator, self.interrupts = accelerator, interrupts
        self.several = accelerator.num_processes > 1
        self.left = threading.Event()
        self._group = _group_on_cpu() if self.several else None
        self._store = _store() if self.several else None

    def __enter__(self) -> Crew:
        if self.several:
            threading.Thread(target=self._look_after_others, daemon=True).start()
        return self

    def __exit__(
        self, kind: type | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(raised, Stopped):
            # Together, too: a launcher that sees one leave ends the others, perhaps as they save.
            self.accelerator.wait_for_everyone()
            self.left.set()
            raise raised.reason from None
        if raised is None:
            self.left.set()
        elif self.several and not isinstance(raised, SystemExit):
            self._lose(raised)

    def stop(self, fault: UserError | None = None) -> Stopped | None:
        """Does any process wish to stop? All call it between the same steps, and agree.

        Args:
            fault: what this process met, and would raise.
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
        """Raise `stop`'s answer, but let what is begun end where only the time is up."""
        stopped = self.stop(fault)
        if stopped and stopped.cause != Cause.TIME:
            raise stopped

    def _lose(self, raised: BaseException) -> None:
        """Tell the others of what is raised here, unless it only follows from what they have raised."""
        if not isinstance(raised, UserError) and self._others_lost():
            raise SystemExit(1) from None
        assert self._store is not None  # of several
        with suppress(RuntimeError):  # the process that keeps the store may have gone
            self._store.set(LOST, str(self.accelerator.process_index))
        if isinstance(raised, RuntimeError) and _is_of_exchange(raised):
            raise UserError(
                "another process of the run has gone; run again (train.py: with --resume)"
            ) from None

    def _look_after_others(self) -> None:
        while not self.left.wait(LOOK_S):
            if self._others_lost() and not self.left.wait(GRACE_S):
                sys.stderr.flush()
                os._exit(1)

    def _others_lost(self) -> bool:
        assert self._store is not None  # of several
        try:
            return self._store.check([LOST])
        except RuntimeError:  # of the process that keeps the store
            return True


def _group_on_cpu() -> distributed.ProcessGroup | None:
    """A group that exchanges by way of the CPU, without waiting for what a GPU has yet to do."""
    if "gloo" in distributed.get_backend():
        return None  # the run's own
    group = distributed.new_group(backend="gloo")
    assert isinstance(group, distributed.ProcessGroup)  # every process is a member
    return group


def _store() -> distributed.Store:
    """A connection of its own: others may be in the middle of a wait."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return distributed.TCPStore(*place, is_master=False, timeout=REACH)


def _is_of_exchange(error: RuntimeError) -> bool:
    return isinstance(error, distributed.DistError) or "gloo" in str(error).lower()
