"""Losses against forgetting: distance from the pretrained backbone, in features and in weights.

Shapes: B images, F backbone features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


def drift(feat_BF: Tensor, pretrained_BF: Tensor) -> Tensor:
    """Return the mean of 1 - cos between features and pretrained ones.

    Computed as half the squared distance of directions, which is precise for close features.
    """
    ours_BF = functional.normalize(feat_BF.float(), dim=-1)
    theirs_BF = functional.normalize(pretrained_BF.float(), dim=-1)
    return (ours_BF - theirs_BF).square().sum(-1).mean() / 2


def squared_distance(student: nn.Module, pretrained: nn.Module) -> Tensor:
    """Return the sum of squared differences of trainable parameters from pretrained ones.

    L2-SP (Li et al., Explicit Inductive Bias for Transfer Learning with Convolutional Networks, ICML
    2018); the paper's weight alpha is twice ours.
    """
    theirs = dict(pretrained.named_parameters())
    trained = [(theirs[name], p) for name, p in student.named_parameters() if p.requires_grad]
    if not trained:  # a stage that trains adapters alone
        return next(student.parameters()).new_zeros(())
    pretrained_values, values = zip(*trained, strict=True)
    return _SquaredDistance.apply(pretrained_values, *values)


class _SquaredDistance(torch.autograd.Function):
    """Recompute differences in the backward pass; storing them would copy the backbone."""

    @staticmethod
    def forward(ctx: Any, pretrained: tuple[Tensor, ...], *values: Tensor) -> Tensor:
        ctx.pretrained = pretrained
        ctx.save_for_backward(*values)
        apart = [(p - p0).square_().sum() for p, p0 in zip(values, pretrained, strict=True)]
        return torch.stack(apart).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, *tuple[Tensor, ...]]:
        pairs = zip(ctx.saved_tensors, ctx.pretrained, strict=True)
        return None, *((p - p0).mul_(2 * grad) for p, p0 in pairs)
