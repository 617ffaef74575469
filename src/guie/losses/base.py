"""The base class of losses on embeddings; helpers for the global batch and for fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from guie.base.devices import cpu_group


def on_device_of(values: Tensor, other: Tensor) -> Tensor:
    """Return CPU values on the device of `other`, without waiting for that device."""
    return values.to(other.device, non_blocking=True)


def rows_of(mask_B: Tensor) -> Tensor:
    """Return the numbers of the rows that a mask selects; on the CPU this waits for no device."""
    return mask_B.nonzero().squeeze(1)


def gather_rows(rows_B: Tensor) -> Tensor:
    """Gather the rows of all processes in rank order; every process must pass equally many.

    Rows on the CPU, such as labels, are exchanged there, without waiting for the device.

    The gradient of the local rows is summed over the losses of all processes. With DDP's mean over
    processes, it equals the gradient of one process with the whole batch.
    """
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return rows_B
    return _Gather.apply(rows_B)


def gather_uneven(*columns: Tensor) -> tuple[Tensor, ...]:
    """Gather the rows of all processes in rank order, without gradient; each may pass any number, also 0.

    The columns of a process have equally many rows.
    """
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return columns
    rows = len(columns[0])
    counts = gather_rows(torch.tensor([rows])).tolist()  # on the CPU: does not wait for the device
    if not any(counts):
        return columns

    def gathered(rows_N: Tensor) -> Tensor:
        # A collective needs equally many rows of each process
        padded = rows_N.new_zeros(max(counts), *rows_N.shape[1:])
        padded[:rows] = rows_N.detach()
        parts = gather_rows(padded).split(max(counts))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    return tuple(gathered(rows_N) for rows_N in columns)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_B: Tensor) -> Tensor:
        ctx.rows = len(rows_B)
        parts = [torch.empty_like(rows_B) for _ in range(distributed.get_world_size())]
        group = cpu_group() if rows_B.device.type == "cpu" else None
        distributed.all_gather(parts, rows_B.contiguous(), group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        distributed.all_reduce(grad)
        first = distributed.get_rank() * ctx.rows
        return grad[first : first + ctx.rows]


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a sharded tensor, in the same memory; other tensors unchanged."""
    # A DTensor has it; to import that class takes a second
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local else tensor


def at_least_fp32(values: Tensor) -> Tensor:
    """Cast half precision to float32; keep float64."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


class HostCounters(nn.Module):
    """A module whose integer buffers are mirrored in Python, because reading a buffer waits for its device.

    Attributes: `counts`, the values by name. The buffers are for state dicts.
    """

    def __init__(self, *names: str):
        super().__init__()
        self.counts = dict.fromkeys(names, 0)
        for name in names:
            self.register_buffer(name, torch.zeros((), dtype=torch.long))

    def set_count(self, name: str, value: int) -> None:
        """Set a counter and its buffer."""
        self.counts[name] = value
        self.get_buffer(name).fill_(value)

    def read_counts(self) -> None:
        """Read the counters after something else changed the buffers; waits for the device."""
        self.counts = {name: int(self.get_buffer(name)) for name in self.counts}

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.read_counts()


@dataclass(frozen=True)
class LossStage:
    """What a stage sets in a loss with class weights."""

    margin: float | None = None  # of all classes; None: the loss's own
    alone: bool = False  # the softmax is over the stage's classes only
    reset: tuple[int, ...] | None = None  # seed to redraw their weights with; None: keep them

    def of_part(self, number: int) -> LossStage:
        """Return the same for one of several losses, which redraws its weights with its own seed."""
        return replace(self, reset=self.reset and (*self.reset, number))


LossAndLogs = tuple[Tensor, dict[str, Tensor]]  # the scalar loss, and further values to log


class Criterion(nn.Module):
    """A loss on unit-length embeddings (B, D) and class ids (B,); returns (loss, logs).

    Class ids are expected on the CPU: a loss that has to know them would otherwise wait for the device.

    Its parameters (class weights or proxies) are the part `classes` of a task.
    """

    def forward(self, emb_BD: Tensor, label_B: Tensor, raw_BD: Tensor | None = None) -> LossAndLogs:
        """Return loss and logs; training gives `raw_BD`, the embeddings before normalisation, too."""
        raise NotImplementedError

    def begin_stage(self, class_ids: Sequence[int], stage: LossStage) -> None:
        """Begin a stage with images of these classes, before its optimiser is made."""
