"""Processes of one run: they stop together, by signals too; fully sharded training (FSDP)."""

from __future__ import annotations

import copy
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, fsdp2_prepare_model
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from guie.base.errors import UserError
from guie.config.training import RunConfig

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


class ProcessGroupGuard:
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

    def __enter__(self) -> ProcessGroupGuard:
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


T = TypeVar("T", bound=nn.Module)

# A transformer's block, or a convolutional network's stage, by its name.
BLOCK = re.compile(r"(.*\.)?(blocks|resblocks|layers|stages)\.\d+")


def is_sharded(accelerator: Accelerator) -> bool:
    """Was the run started with `--use_fsdp`?"""
    return accelerator.distributed_type == DistributedType.FSDP


def refuse_unshardable(accelerator: Accelerator, config: RunConfig) -> None:
    """Raise UserError for what a sharded run cannot do."""
    if not is_sharded(accelerator):
        return
    if config.channels_last:
        raise UserError("channels_last: FSDP shards contiguous weights only; set it to false")
    if any(stage.clip_grad_value for stage in config.stages):
        raise UserError("clip_grad_value: accelerate has none under FSDP; take clip_grad_norm")
    if config.retention and config.retention.weights:
        raise UserError(
            "retention.weights: compares whole weights, and under FSDP no process holds them; set it"
            " to 0, or train without --use_fsdp"
        )


class Shards(Generic[T]):
    """Takes the task and its average apart and puts them together; without FSDP it does neither.

    Args:
        task: whole, not yet prepared.

    Raises UserError if it has what cannot be taken apart.
    """

    def __init__(self, accelerator: Accelerator, task: T):
        self.accelerator = accelerator
        self.frame = _without_weights(task) if is_sharded(accelerator) else None
        if self.frame is not None:
            _refuse_scalars(task)
            _name_blocks(task)

    def shard(self, module: nn.Module) -> None:
        """Take apart a module that is not trained, in place."""
        if self.frame is not None:
            _name_blocks(module)
            fsdp2_prepare_model(self.accelerator, module)

    def whole(self, module: T) -> T:
        """The task with the module's weights, on this process's device; all processes call it.

        Forward passes of the shards wait for one another; the whole is free to take other batches.
        """
        if self.frame is None:
            return module
        task = copy.deepcopy(self.frame)
        state = map_tensors(lambda t: _full(t, self.accelerator.device), module.state_dict())
        task.load_state_dict(state, assign=True)
        return task.train(module.training)


def gathered(accelerator: Accelerator, state: Any) -> Any:
    """A nested state on the CPU, whole in the main process; all processes call it.

    What the others return is of no use: they keep no tensor, so none holds the whole for long.
    """
    if not is_sharded(accelerator):
        return state
    keep = accelerator.is_main_process

    def take(tensor: Tensor) -> Tensor | None:
        full = _full(tensor, torch.device("cpu"))
        return full if keep else None

    return map_tensors(take, state)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a whole state dict, of which each process takes its part."""
    owners = [p for group in optimizer.param_groups for p in group["params"]]
    parts = {n: _parts(owners[n], values) for n, values in state["state"].items()}
    optimizer.load_state_dict({**state, "state": parts})


def map_tensors(make: Callable[[Tensor], Any], values: Any) -> Any:
    """Nested dicts and lists with `make(tensor)` in the place of every tensor."""
    if isinstance(values, Tensor):
        return make(values)
    if isinstance(values, dict):
        return type(values)((key, map_tensors(make, value)) for key, value in values.items())
    if isinstance(values, list):
        return [map_tensors(make, value) for value in values]
    return values


def local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor, in the same memory; any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def _full(tensor: Tensor, device: torch.device) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).to(device)


def _parts(owner: Tensor, values: dict[str, Any]) -> dict[str, Any]:
    """An optimiser's state of one parameter; what has its shape is sharded as it is."""
    if not isinstance(owner, DTensor):
        return values

    def part(value: Tensor) -> Tensor:
        if value.shape != owner.shape:
            return value  # a counter
        mesh, placements = owner.device_mesh, owner.placements
        # Every process has read the file: no need to send anything.
        return distribute_tensor(value.to(owner.device), mesh, placements, src_data_rank=None)

    return map_tensors(part, values)


def _without_weights(task: T) -> T:
    """A copy that has all but the memory of the parameters."""
    hollow = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in task.parameters()}
    return copy.deepcopy(task, hollow)


def _refuse_scalars(task: nn.Module) -> None:
    scalars = [name for name, parameter in task.named_parameters() if not parameter.dim()]
    if scalars:
        raise UserError(
            f"FSDP cannot share out {', '.join(scalars)}, a single number; train without --use_fsdp"
        )


def _name_blocks(module: nn.Module) -> None:
    """Tell accelerate the names of the classes that it gathers one at a time."""
    found = {
        type(child).__name__ for name, child in module.named_modules() if BLOCK.fullmatch(name)
    }
    module._no_split_modules = sorted(found)  # type: ignore[assignment]  # stubs: tensors, modules
