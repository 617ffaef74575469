"""Terms against forgetting what the backbone was pretrained for.

Shapes: B images, G generic images, F backbone features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from guie.batches.batch import Batch
from guie.config import RunConfig
from guie.config.run import GenericImagesConfig
from guie.model.backbone import Backbone, build_backbone


class Retention:
    """Holds the backbone's weights, its features, or both to the pretrained ones.

    The pretrained backbone stands apart: this is no module, so no checkpoint, optimiser, reducer or
    `train()` reaches it. It is read from its own file at the start of every stage that trains the
    backbone, a resumed one too.
    """

    def __init__(self, config: RunConfig):
        assert config.retention is not None
        self.run, self.config = config, config.retention
        self.pretrained: Backbone | None = None

    def __deepcopy__(self, memo: dict) -> Retention:
        return self  # a task's moving average is never trained: one pretrained backbone is enough

    @property
    def generic(self) -> GenericImagesConfig | None:
        """The generic images that batches of this stage bring along."""
        return self.config.generic if self.pretrained else None

    def open_stage(self, number: int, student: Backbone) -> None:
        """Read the pretrained backbone where the stage trains any of the student's."""
        trained = [p for p in student.parameters() if p.requires_grad]
        self.pretrained = None
        if trained:
            self.pretrained = pretrained_for(self.run, number).to(trained[0].device)

    def __call__(
        self, student: Backbone, batch: Batch, feat_BF: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What to add to the loss, and each term before its weight, for the log.

        Args:
            batch: with images, or where they are configured generic ones.
            feat_BF: the student's features of `images`.
        """
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
            return {"features": drift(feat_BF, _frozen(pretrained, batch.images_BCHW))}
        images_GCHW = batch.generic_GCHW
        assert images_GCHW is not None
        if not len(images_GCHW):  # a micro-batch may go without
            return {}
        apart = drift(student(images_GCHW), _frozen(pretrained, images_GCHW))
        return {"features": batch.generic_weight * apart}


@torch.no_grad()
def _frozen(pretrained: Backbone, images_BCHW: Tensor) -> Tensor:
    return pretrained(images_BCHW)


def pretrained_for(config: RunConfig, number: int) -> Backbone:
    """The pretrained backbone at a stage's image size and stride, frozen.

    Its position embeddings are resampled as often as those of the student were by then.
    """
    model = config.model
    backbone = build_backbone(model.backbone, model.image.size_px)
    for stage in config.stages[: number + 1]:
        size_px, stride_px = stage.size_px, stage.stride_px
        backbone.set_image_size(
            size_px or model.image.size_px, stride_px or model.backbone.stride_px
        )
    return backbone.eval().requires_grad_(False)


def drift(feat_BF: Tensor, pretrained_BF: Tensor) -> Tensor:
    """Mean of 1 - cos between features and pretrained ones.

    As half the squared distance of their directions, which loses no digits where they are close.
    """
    ours_BF = functional.normalize(feat_BF.float(), dim=-1)
    theirs_BF = functional.normalize(pretrained_BF.float(), dim=-1)
    return (ours_BF - theirs_BF).square().sum(-1).mean() / 2


def squared_distance(student: nn.Module, pretrained: nn.Module) -> Tensor:
    """Sum of squared differences of the student's trainable parameters from the pretrained ones.

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
    """Keeps no difference for the backward pass: that would be one more copy of the backbone."""

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
