"""Margin rules: what becomes of the cosine of an image's own class, and of hard other classes; and how
large the margin is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from guie.config.losses import ClassSizeMargin, MarginSchedule
from guie.losses.base import gather_rows
from guie.losses.streamed import Hardening


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


# Half a float32 ulp below 1 is 6e-8; at this distance sin(theta) and its gradient are finite.
EDGE = 1e-7


class MarginRule(nn.Module):
    """A margin, and what it does to the cosine between an image and its own class.

    Args:
        margin: one number, one per class (C,), or a schedule, which stands at epoch 0 until told.
    """

    margin_C: Tensor
    own_C: Tensor

    def __init__(self, margin: float | Tensor | MarginSchedule):
        super().__init__()
        self.schedule = margin if isinstance(margin, MarginSchedule) else None
        start = scheduled_margin(margin, 0.0) if isinstance(margin, MarginSchedule) else margin
        self.register_buffer("margin_C", torch.as_tensor(start).reshape(-1), persistent=False)
        self.register_buffer("own_C", self.margin_C.clone(), persistent=False)
        self.fixed = False

    def set_epoch(self, epoch: float) -> None:
        """Move a scheduled margin to a (fractional) epoch; other margins stay."""
        if self.schedule and not self.fixed:
            self.margin_C.fill_(scheduled_margin(self.schedule, epoch))

    def set_margin(self, margin: float | None) -> None:
        """One margin for all classes, as a stage may have it; None: the rule's own again."""
        self.fixed = margin is not None
        own_C = self.own_C
        self.margin_C = own_C.clone() if margin is None else torch.full_like(own_C, margin)

    def reset(self, own_C: Tensor) -> None:
        """Forget what was learnt of these classes, whose weights begin anew."""

    def margin(self, label_B: Tensor) -> Tensor:
        """Margin of every image, by its class."""
        return self.margin_C[label_B] if len(self.margin_C) > 1 else self.margin_C

    def own(self, cos_B: Tensor, label_B: Tensor) -> Tensor:
        """Cosine to the own class -> cosine with margin."""
        raise NotImplementedError


class CosFace(MarginRule):
    """cos(theta) - m (Wang et al., CosFace, CVPR 2018, eq. 4); m = 0 is the normalised softmax."""

    def __init__(self, margin_cos: float | Tensor | MarginSchedule):
        super().__init__(margin_cos)

    def own(self, cos_B: Tensor, label_B: Tensor) -> Tensor:
        return cos_B - self.margin(label_B)


class ArcFace(MarginRule):
    """cos(theta + m) (Deng et al., ArcFace, CVPR 2019, eq. 3)."""

    def __init__(self, margin_rad: float | Tensor | MarginSchedule):
        super().__init__(margin_rad)

    def own(self, cos_B: Tensor, label_B: Tensor) -> Tensor:
        return add_angular_margin(cos_B, self.margin(label_B))


class CurricularFace(ArcFace):
    """ArcFace that weighs hard negatives more as training goes on (Huang et al., CVPR 2020).

    Another class with cos > cos(theta_y + m) is hard: its cosine becomes cos (t + cos), with t a
    running mean of the cosines to the own class, over all processes. Past the fold of the margin
    the threshold follows the straight line, as in PUMA's code.

    Args:
        margin_rad: m.
        classes: C to keep one t a class, updated after use, as PUMA's code does; None for the
            published single t, updated before use.
        momentum: weight of the past in the running mean.
    """

    t_C: Tensor

    def __init__(
        self,
        margin_rad: float | Tensor | MarginSchedule,
        classes: int | None = None,
        momentum: float = 0.99,
    ):
        super().__init__(margin_rad)
        self.per_class, self.momentum = classes is not None, momentum
        self.register_buffer("t_C", torch.zeros(classes or 1))

    def hardening(self, cos_B: Tensor, label_B: Tensor, scale: float) -> Hardening:
        """Threshold and t of every image; in training the running mean takes in the batch."""
        if self.training and not self.per_class:
            self._update(cos_B, torch.zeros_like(label_B))
        t_B = self.t_C[label_B] if self.per_class else self.t_C.repeat(len(label_B))
        if self.training and self.per_class:
            self._update(cos_B, label_B)
        return Hardening(scale * self.own(cos_B, label_B), t_B.to(cos_B.dtype), scale)

    def reset(self, own_C: Tensor) -> None:
        """A single t too: it is the mean over images of a stage, and so of these classes."""
        self.t_C[own_C if self.per_class else ...] = 0.0

    def _update(self, cos_B: Tensor, place_B: Tensor) -> None:
        """Mix the mean cosine of every place that occurs into its t."""
        cos_B, place_B = gather_rows(cos_B), gather_rows(place_B)
        same_BB = place_B[:, None] == place_B
        mean_B = (same_BB * cos_B).sum(1) / same_BB.sum(1)
        # Images of one place write the same value, so their order does not matter.
        mixed_B = self.momentum * self.t_C[place_B] + (1 - self.momentum) * mean_B
        self.t_C[place_B] = mixed_B.to(self.t_C.dtype)


def add_angular_margin(cos: Tensor, margin_rad: Tensor) -> Tensor:
    """cos(theta) -> cos(theta + m), monotonous over all of [0, pi], gradient finite at both ends.

    Past theta = pi - m the cosine would rise again; there the straight line
    cos(theta) - m sin(m) goes on falling instead (as ArcFace's authors do).
    """
    cos = cos.clamp(-1 + EDGE, 1 - EDGE)
    sin = (1 - cos.square()).sqrt()
    cos_m, sin_m = margin_rad.cos(), margin_rad.sin()
    return torch.where(cos > -cos_m, cos * cos_m - sin * sin_m, cos - margin_rad * sin_m)
