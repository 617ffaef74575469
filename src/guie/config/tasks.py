"""The config of what is trained: classification, distillation, online teachers, image-text contrast."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from guie.config.base import Config, Width
from guie.config.distillation import DistillationConfig, OnlineConfig
from guie.config.losses import ArcFaceConfig, LossConfig, MetaclassesConfig
from guie.config.model import ModelConfig


class ClassificationConfig(Config):
    """A loss on the labels; by default a margin softmax over all classes of all domains."""

    name: Literal["classification"] = "classification"
    loss: LossConfig = ArcFaceConfig()
    metaclasses: MetaclassesConfig | None = None  # null: the classes themselves
    # Widths of Linears between the embedding and the loss, with a ReLU between two; left out when scored.
    # What lies under the loss generalises worse than what lies beneath that (Vo and Hays, 3.3)
    projector: list[Width] = []

    @property
    def losses(self) -> list[LossConfig]:
        """Those on labels: the one."""
        return [self.loss]

    def parts(self, model: ModelConfig) -> list[str]:
        """What has a learning rate of its own: see `Task.parts`."""
        named = ["backbone", *model.parts(), *(["head"] if model.head else []), "classes"]
        return [*named, *(["projector"] if self.projector else [])]


class ContrastiveConfig(Config):
    """Image-text contrast on the manifest's captions: how a CLIP is pretrained."""

    name: Literal["contrastive"]

    @property
    def losses(self) -> list[LossConfig]:
        """Those on labels: none."""
        return []

    def parts(self, model: ModelConfig) -> list[str]:
        """What has a learning rate of its own: see `Task.parts`."""
        return ["backbone"]


def _classification_unless_named(values: Any) -> Any:
    return {"name": "classification", **values} if isinstance(values, dict) else values


TaskConfig = Annotated[
    ClassificationConfig | DistillationConfig | OnlineConfig | ContrastiveConfig,
    Field(discriminator="name"),
    BeforeValidator(_classification_unless_named),
]


def unblendable(task: TaskConfig) -> str | None:
    """Why its batches cannot have blends of two images; None: they can."""
    if task.losses or not isinstance(task, DistillationConfig):
        return "a blend of two images has no label and no caption, only teachers tell what it is"
    if any(one.domains for one in task.teachers) or any(one.domains for one in task.criteria):
        return "a blend may be of two domains, and task has teachers or criteria of some alone"
    return None
