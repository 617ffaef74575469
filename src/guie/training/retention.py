"""Retention: keep weights, features or both close to the student's pretrained backbone.

Shapes: B images, G generic images, C channels, H height, W width, F backbone features.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from guie.config import RunConfig
from guie.config.training import GenericImagesConfig
from guie.data.dataset import Batch
from guie.models.backbones import build_backbone
from guie.models.backbones.base import Backbone
from guie.training.micro_batches import in_micro_batches


class Retention:
    """The terms that `retention` adds to a task's loss.

    The backbone is read from its file at the start of every stage that trains it, also on resume. This is
    no module, so no checkpoint, optimiser, reducer or `train()` reaches the backbone.
    """

    def __init__(self, config: RunConfig):
        assert config.retention is not None
        self.run, self.config = config, config.retention
        self.pretrained: Backbone | None = None

    def __deepcopy__(self, memo: dict) -> Self:
        return self  # weight averages of the task share it

    @property
    def generic(self) -> GenericImagesConfig | None:
        """The generic images that batches of this stage include, if any."""
        return self.config.generic if self.pretrained else None

    def begin_stage(self, number: int, student: Backbone) -> None:
        """Read the pretrained backbone if the stage trains any of the student's parameters."""
        trained = [p for p in student.parameters() if p.requires_grad]
        self.pretrained = None
        if trained:
            model = self.run.model
            pretrained = build_backbone(model.backbone, model.image.size_px)
            # Position embeddings are resampled once per stage so far, as the student's were
            for stage in self.run.stages[: number + 1]:
                pretrained.set_image_size(*self.run.image_size(stage))
            self.pretrained = pretrained.eval().requires_grad_(False).to(trained[0].device)

    def __call__(
        self, student: Backbone, batch: Batch, feat_BF: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the term to add to the loss, and each unweighted term for the log."""
        terms: dict[str, Tensor] = {}
        if self.pretrained and self.config.weights:
            terms["weights"] = squared_distance(student.tower, self.pretrained.tower)
        if self.pretrained and self.config.features:
            terms |= self._features(student, self.pretrained, batch, feat_BF)
        total = feat_BF.new_zeros((), dtype=torch.float32)
        for name, term in terms.items():
            total = total + getattr(self.config, name) * term
        return total, {f"retention_{name}": term.detach() for name, term in terms.items()}

    def _features(
        self, student: Backbone, pretrained: Backbone, batch: Batch, feat_BF: Tensor
    ) -> dict[str, Tensor]:
        if not self.config.generic:
            assert batch.images_BCHW is not None
            frozen_BF = in_micro_batches(pretrained, batch.pieces, batch.images_BCHW)
            return {"features": drift(feat_BF, frozen_BF)}
        images_GCHW = batch.generic_GCHW
        assert images_GCHW is not None
        if not len(images_GCHW):  # a micro-batch may have none
            return {}
        feat_GF, frozen_GF = (
            in_micro_batches(network, batch.pieces, images_GCHW)
            for network in (student, pretrained)
        )
        return {"features": batch.generic_weight * drift(feat_GF, frozen_GF)}


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
