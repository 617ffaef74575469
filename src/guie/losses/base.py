"""The base class of losses on embeddings; helpers for the global batch and for fp32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn


def gather_rows(rows_B: Tensor) -> Tensor:
    """Gather the rows of all processes in rank order; every process must pass equally many.

    The gradient of the local rows is summed over the losses of all processes. With DDP's mean over
    processes, it equals the gradient of one process with the whole batch.
    """
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return rows_B
    return _Gather.apply(rows_B)


def gather_uneven(rows_N: Tensor) -> Tensor:
    """Gather the rows of all processes in rank order, without gradient; each may pass any number, also 0."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return rows_N
    counts = gather_rows(torch.tensor([len(rows_N)], device=rows_N.device)).tolist()
    if not any(counts):
        return rows_N
    # A collective needs equally many rows of each process
    padded = rows_N.new_zeros(max(counts), *rows_N.shape[1:])
    padded[: len(rows_N)] = rows_N.detach()
    parts = gather_rows(padded).split(max(counts))
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


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
    """Cast half precision to float32; keep float64."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


class Criterion(nn.Module):
    """A loss on unit-length embeddings (B, D) and class ids (B,); returns (loss, logs).

    Its parameters (class weights or proxies) are the part `classes` of a task.
    """

    def forward(self, emb_BD: Tensor, label_B: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scalar loss, and further values to log."""
        raise NotImplementedError

    def set_epoch(self, epoch: float) -> None:
        """Update schedules to a (fractional) epoch, counted from 0."""

    def begin_stage(
        self,
        class_ids: Sequence[int],
        *,
        margin: float | None = None,
        alone: bool = False,
        reset: Sequence[int] | None = None,
    ) -> None:
        """Begin a stage, after its trainable parts are set and before its optimiser is made.

        Args:
            class_ids: classes with training images in the stage.
            margin: for all classes in this stage; None: the loss's own.
            alone: the softmax is over these classes only.
            reset: seed to redraw their weights with; None: keep the weights.
        """
