"""What losses need of the process they run in: the batch of all processes, and fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed


def gather_rows(rows_B: Tensor) -> Tensor:
    """The rows of all processes, in the order of their ranks; every process brings equally many.

    The gradient of the own rows is summed over the processes' losses. Together with DDP's mean over
    processes, a loss on the gathered batch has the gradient of one process with that batch.
    """
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return rows_B
    return _Gather.apply(rows_B)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_B: Tensor) -> Tensor:
        ctx.rows = len(rows_B)
        parts = [torch.empty_like(rows_B) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, rows_B.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        distributed.all_reduce(grad)
        first = distributed.get_rank() * ctx.rows
        return grad[first : first + ctx.rows]


def at_least_fp32(values: Tensor) -> Tensor:
    """Half precision becomes float32; float64 stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
