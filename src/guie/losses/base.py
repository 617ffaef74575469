"""What every loss on embeddings is to training, and what it needs of its process: the global batch, and
fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn


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


class Criterion(nn.Module):
    """Takes unit-length embeddings (B, D) and class ids (B,), returns (loss, logs).

    Its parameters, class weights or proxies, are the part `classes` of a task.
    """

    def forward(self, emb_BD: Tensor, label_B: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss, a number, and what is to be logged beside it."""
        raise NotImplementedError

    def set_epoch(self, epoch: float) -> None:
        """Tell what is scheduled how far training is, in (fractional) epochs from 0."""

    def begin_stage(
        self,
        class_ids: Sequence[int],
        *,
        margin: float | None = None,
        alone: bool = False,
        reset: Sequence[int] | None = None,
    ) -> None:
        """Begin a stage, when it is settled what it trains and before an optimiser takes it.

        Args:
            class_ids: classes with training images in the stage.
            margin: of the stage alone, for all classes; None: the loss's own.
            alone: these classes compete among themselves, not with all.
            reset: integers to draw their weights from; None: they stay as they are.
        """
