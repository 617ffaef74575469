"""Weights averaged along the way."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from guie.training.sharding import local

Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]


def averaged(task: nn.Module, decay: float) -> AveragedModel:
    """A copy of the task that follows its weights by an exponential moving average."""
    average = get_ema_multi_avg_fn(decay)

    def by_parts(averages: Tensors, values: Tensors, updates: Tensor | int) -> None:
        average([local(t) for t in averages], [local(t) for t in values], updates)

    return AveragedModel(task, multi_avg_fn=by_parts, use_buffers=True)
