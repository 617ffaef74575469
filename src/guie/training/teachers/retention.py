"""The pretrained backbone as a teacher of the one that trains: terms against forgetting.

Shapes: B images, G generic images, F backbone features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from guie.batches.batch import Batch
from guie.config import RunConfig
from guie.config.run import GenericImagesConfig
from guie.losses.relational import drift, squared_distance
from guie.model.backbone import Backbone, build_backbone
from guie.training.teachers.apart import Apart, frozen


class Retention(Apart):
    """A teacher that is the student's own beginning: weights, features, or both are held to its.

    It is read from its own file at the start of every stage that trains the backbone, a resumed one too.
    """

    def __init__(self, config: RunConfig):
        assert config.retention is not None
        self.run, self.config = config, config.retention
        self.pretrained: Backbone | None = None

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
    return frozen(backbone)
