"""Weights averaged along the way."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from guie.training.sharding import local


def averaged(task: nn.Module, decay: float) -> AveragedModel:
    """A copy of the task that follows its weights by an exponential moving average."""
    average = get_ema_multi_avg_fn(decay)

    def by_parts(averages: list[Tensor], values: list[Tensor], updates: Tensor) -> None:
        average([local(t) for t in averages], [local(t) for t in values], updates)

    return AveragedModel(task, multi_avg_fn=by_parts, use_buffers=True)
