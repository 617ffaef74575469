"""How large the margin is: by class size, or by how far training has come."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from guie.config.losses import ClassSizeMargin, MarginSchedule


def scheduled_margin(schedule: MarginSchedule, epoch: float) -> float:
    """The margin at a (fractional) epoch, counted from 0; a pure function of it."""
    passed = math.floor(epoch) if schedule.every == "epoch" else epoch
    return min(schedule.start + schedule.rise_per_epoch * passed, schedule.limit)


def class_size_margins(sizes: Sequence[int], bounds: ClassSizeMargin) -> Tensor:
    """Margin of every class, (C,): n ** -power, stretched linearly to the bounds.

    The challenge's fourth and sixth places have it so, after Ha et al., Google Landmark Recognition
    2020 Competition Third Place Solution. Classes of one common size all get the upper bound.

    Args:
        sizes: training images of each class; a class without any counts as one image.
        bounds: least and most margin, and the power.
    """
    rarity_C = torch.as_tensor(sizes, dtype=torch.float64).clamp(min=1) ** -bounds.power
    low, high = rarity_C.aminmax()
    share_C = (rarity_C - low) / (high - low) if high > low else torch.ones_like(rarity_C)
    return (bounds.least + share_C * (bounds.most - bounds.least)).float()
