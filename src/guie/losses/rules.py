"""Margin rules: the margin's size, and its effect on cosines of the own class and hard negatives."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from guie.config.losses import (
    ArcFaceConfig,
    ClassSizeMargin,
    CosFaceConfig,
    CurricularFaceConfig,
    Margin,
    MarginSchedule,
    SoftmaxConfig,
)
from guie.losses.base import gather_uneven
from guie.losses.streamed import Hardening


def scheduled_margin(schedule: MarginSchedule, epoch: float) -> float:
    """Return the margin at a (fractional) epoch, counted from 0."""
    passed = math.floor(epoch) if schedule.every == "epoch" else epoch
    return min(schedule.start + schedule.rise_per_epoch * passed, schedule.limit)


def class_size_margins(sizes: Sequence[int], bounds: ClassSizeMargin) -> Tensor:
    """Return the margin of every class, (C,): n ** -power, scaled linearly to the bounds.

    Used by the challenge's fourth and sixth places, after Ha et al., Google Landmark Recognition
    2020 Competition Third Place Solution. If all classes have one size, they get the upper bound; a class
    without images counts as one image.
    """
    rarity_C = torch.as_tensor(sizes, dtype=torch.float64).clamp(min=1) ** -bounds.power
    low, high = rarity_C.aminmax()
    share_C = (rarity_C - low) / (high - low) if high > low else torch.ones_like(rarity_C)
    return (bounds.min + share_C * (bounds.max - bounds.min)).float()


# Half a float32 ulp below 1 is 6e-8; at this distance sin(theta) and its gradient are finite.
EDGE = 1e-7


class MarginRule(nn.Module):
    """A margin, and its effect on the cosine between an image and its own class.

    Args:
        margin: one number, one per class (C,), or a schedule, at epoch 0 until `set_epoch`.
    """

    uses_norms = False  # of embeddings before normalisation: `norm_B` below is empty without it
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
        """Update a scheduled margin to a (fractional) epoch, counted from 0; keep other margins."""
        if self.schedule and not self.fixed:
            self.margin_C.fill_(scheduled_margin(self.schedule, epoch))

    def set_margin(self, margin: float | None) -> None:
        """Set one margin for all classes, for a stage; None restores the rule's own."""
        self.fixed = margin is not None
        own_C = self.own_C
        self.margin_C = own_C.clone() if margin is None else torch.full_like(own_C, margin)

    def reset(self, own_C: Tensor) -> None:
        """Reset the state of these classes, whose weights are reinitialised."""

    def margin(self, label_B: Tensor) -> Tensor:
        """Return the margin of every image, by its class."""
        return self.margin_C[label_B] if len(self.margin_C) > 1 else self.margin_C

    def own(self, cos_B: Tensor, label_B: Tensor, norm_B: Tensor) -> Tensor:
        """Apply the margin to the cosine of the own class; the norms have a gradient."""
        raise NotImplementedError

    def observe(self, norm_B: Tensor) -> None:
        """Update running statistics of norms, by those of all processes, before `own` in training."""

    def penalty(self, norm_B: Tensor) -> Tensor:
        """Return a term on the norms that is added to the loss."""
        return norm_B.new_zeros(())


class CosFace(MarginRule):
    """cos(theta) - m (Wang et al., CosFace, CVPR 2018, eq. 4); m = 0 is the normalised softmax."""

    def own(self, cos_B: Tensor, label_B: Tensor, norm_B: Tensor) -> Tensor:
        return cos_B - self.margin(label_B)


class ArcFace(MarginRule):
    """cos(theta + m), m in radians (Deng et al., ArcFace, CVPR 2019, eq. 3)."""

    def own(self, cos_B: Tensor, label_B: Tensor, norm_B: Tensor) -> Tensor:
        return add_angular_margin(cos_B, self.margin(label_B))


class CurricularFace(ArcFace):
    """ArcFace that weighs hard negatives more as training continues (Huang et al., CVPR 2020).

    Another class with cos > cos(theta_y + m) is hard: its cosine becomes cos (t + cos), with t a
    running mean of the cosines to the own class, over all processes. Past the fold of the margin
    the threshold follows the straight line, as in PUMA's code.

    Args:
        margin_rad: m.
        classes: C for one t per class, updated after use (PUMA's code); None for the published
            single t, updated before use.
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
        """Return threshold and t of every image; training updates the running mean."""
        if self.training and not self.per_class:
            self._update(cos_B, torch.zeros_like(label_B))
        t_B = self.t_C[label_B] if self.per_class else self.t_C.repeat(len(label_B))
        if self.training and self.per_class:
            self._update(cos_B, label_B)
        own_B = add_angular_margin(cos_B, self.margin(label_B))
        return Hardening(scale * own_B, t_B.to(cos_B.dtype), scale)

    def reset(self, own_C: Tensor) -> None:
        """Reset t; a single t too, as it is a mean over images of these classes."""
        self.t_C[own_C if self.per_class else ...] = 0.0

    def _update(self, cos_B: Tensor, place_B: Tensor) -> None:
        """Update the t of every index in the batch by its mean cosine.

        Online distillation calls it with a domain's images; each process may have another number of them.
        """
        cos_B, place_B = gather_uneven(cos_B, place_B)
        same_BB = place_B[:, None] == place_B
        mean_B = (same_BB * cos_B).sum(1) / same_BB.sum(1)
        # Images of one index write the same value, so their order does not matter.
        mixed_B = self.momentum * self.t_C[place_B] + (1 - self.momentum) * mean_B
        self.t_C[place_B] = mixed_B.to(self.t_C.dtype)


def add_angular_margin(cos: Tensor, margin_rad: Tensor) -> Tensor:
    """Return cos(theta + m), made monotonic over [0, pi], with finite gradients at both ends.

    Past theta = pi - m the cosine would rise again. There the falling line cos(theta) - m sin(m)
    replaces it, as in the ArcFace authors' code.
    """
    cos = cos.clamp(-1 + EDGE, 1 - EDGE)
    sin = (1 - cos.square()).sqrt()
    cos_m, sin_m = margin_rad.cos(), margin_rad.sin()
    return torch.where(cos > -cos_m, cos * cos_m - sin * sin_m, cos - margin_rad * sin_m)


def margin_of(margin: Margin, sizes: Sequence[int]) -> float | Tensor | MarginSchedule:
    """Return a configured margin as `MarginRule` takes it, for classes of these sizes."""
    return class_size_margins(sizes, margin) if isinstance(margin, ClassSizeMargin) else margin


# A new rule needs its config, a class here, and a line here
RULES: dict[type, Callable[[Any, Sequence[int]], MarginRule]] = {
    SoftmaxConfig: lambda config, sizes: CosFace(0.0),
    CosFaceConfig: lambda config, sizes: CosFace(margin_of(config.margin_cos, sizes)),
    ArcFaceConfig: lambda config, sizes: ArcFace(margin_of(config.margin_rad, sizes)),
    CurricularFaceConfig: lambda config, sizes: CurricularFace(
        margin_of(config.margin_rad, sizes), len(sizes) if config.running_mean == "class" else None
    ),
}
