"""Weights averaged along the way."""

from __future__ import annotations

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def averaged(task: nn.Module, decay: float) -> AveragedModel:
    """A copy of the task that follows its weights by an exponential moving average."""
    return AveragedModel(task, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
