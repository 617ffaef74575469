"""The config of a training run: data, model, task, stages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from guie.config.base import (
    BatchSize,
    Config,
    ConfigError,
    Name,
    PositiveInt,
    Seed,
    Width,
    Workers,
    remedy,
)
from guie.config.distillation import DistillationConfig, OnlineConfig, too_many_neighbours
from guie.config.durations import Steps
from guie.config.losses import (
    ArcFaceConfig,
    ClassWeightsConfig,
    LossConfig,
    MarginSoftmaxConfig,
    MetaclassesConfig,
)
from guie.config.model import BackboneConfig, ModelConfig
from guie.config.sampling import MixedConfig
from guie.config.stages import NonNegative, StageConfig


class ClassificationConfig(Config):
    """A loss on the labels; by default a margin softmax over all classes of all domains."""

    name: Literal["classification"] = "classification"
    loss: LossConfig = ArcFaceConfig()
    metaclasses: MetaclassesConfig | None = None  # null: the classes themselves
    # Widths of Linears, with ReLUs between, from the embedding to the loss; not used in scoring. The
    # layer directly under the loss generalises worse than the one before it (Vo and Hays, 3.3)
    projector: list[Width] = []

    @property
    def losses(self) -> list[LossConfig]:
        """Losses on labels: one."""
        return [self.loss]

    def parts(self, model: ModelConfig) -> list[str]:
        """Return the parts with their own learning rates: see `Task.parts`."""
        named = ["backbone", *model.parts(), *(["head"] if model.head else []), "classes"]
        return [*named, *(["projector"] if self.projector else [])]


class ContrastiveConfig(Config):
    """Image-text contrastive loss on the manifest's captions, as in CLIP pretraining."""

    name: Literal["contrastive"]

    @property
    def losses(self) -> list[LossConfig]:
        """Losses on labels: none."""
        return []

    def parts(self, model: ModelConfig) -> list[str]:
        """Return the parts with their own learning rates: see `Task.parts`."""
        return ["backbone"]


def _classification_unless_named(values: Any) -> Any:
    return {"name": "classification", **values} if isinstance(values, dict) else values


TaskConfig = Annotated[
    ClassificationConfig | DistillationConfig | OnlineConfig | ContrastiveConfig,
    Field(discriminator="name"),
    BeforeValidator(_classification_unless_named),
]


def unblendable(task: TaskConfig) -> str | None:
    """Return why the task cannot use blends of two images; None if it can."""
    if task.losses or not isinstance(task, DistillationConfig):
        return (
            "a blend of two images has no label or caption, so mixup needs teachers and no losses"
        )
    if any(one.domains for one in task.teachers) or any(one.domains for one in task.criteria):
        return "a blend may mix two domains, but some teachers or criteria are for some domains"
    return None


def _no_for_false(value: Any) -> Any:
    return "no" if value is False else value


class DataConfig(Config):
    """The training and validation data."""

    manifest: str
    root: str | None = None  # default: the manifest's folder
    # domains excluded from training and validation, to measure generalisation to unseen domains
    leave_out: list[str] = []
    workers: Workers = 2


class GenericImagesConfig(Config):
    """Generic images on which the features should stay close to the pretrained ones."""

    manifest: str
    root: str | None = None  # default: the manifest's folder
    split: Literal["train", "val"] = "train"
    batch_size: BatchSize = 32  # over all processes


class RetentionConfig(Config):
    """Loss terms against forgetting, in stages that train the backbone."""

    # weight of the squared distance of backbone weights from the pretrained ones (L2-SP)
    weights: NonNegative = 0.0
    # weight of the mean of 1 - cosine between current and pretrained backbone features
    features: NonNegative = 0.0
    generic: GenericImagesConfig | None = None  # null: use the training images

    @model_validator(mode="after")
    def _does_something(self) -> RetentionConfig:
        if not (self.weights or self.features):
            raise ValueError("weights and features are both 0; raise one, or set retention to null")
        if self.generic and not self.features:
            raise ValueError("generic needs features, which is 0; raise features, or drop generic")
        return self


def _has_class_weights(loss: LossConfig) -> bool:
    return isinstance(loss, ClassWeightsConfig) or getattr(loss, "learn_boundary", False)


class RunConfig(Config):
    """One training run; its resolved form is written to the run folder."""

    COMMON: ClassVar = ("train", "stages")

    name: Name
    out: str = "runs"
    # Initial weights: a run or model soup with the same backbone. Class weights are reinitialised, and
    # `retention` still refers to the pretrained weights. null: pretrained
    start_from: str | None = None
    seed: Seed = 0
    # YAML reads a bare no as false
    precision: Annotated[Literal["no", "bf16", "fp16"], BeforeValidator(_no_for_false)] = "no"
    log_every: Steps = 20
    checkpoint_every: Steps = 500
    keep_checkpoints: PositiveInt = 2  # the newest; a damaged one falls back to the previous
    # Write frozen pretrained weights to the run folder too, so that it needs no other file
    copy_frozen: bool = False
    gradient_checkpointing: bool = False  # of the backbone: less memory, a third more time
    channels_last: bool = False  # memory format of images and convolutions
    compile: bool = False  # torch.compile: minutes at the start of each stage, faster steps
    on_out_of_memory: Literal["stop", "halve"] = "stop"  # halve: double micro-batches, retry
    data: DataConfig
    model: ModelConfig
    task: TaskConfig = ClassificationConfig()
    retention: RetentionConfig | None = None
    stages: list[StageConfig] = Field(min_length=1)

    @property
    def base(self) -> BackboneConfig | None:
        """The backbone whose pretrained weights run files may omit; None: they omit none."""
        return None if self.copy_frozen else self.model.backbone

    @model_validator(mode="after")
    def _cached_views_have_a_head(self) -> RunConfig:
        for number, stage in enumerate(self.stages):
            if self.task.name == "contrastive" and stage.cached_views:
                raise ConfigError(
                    f"stages.{number}.cached_views",
                    "task contrastive trains the whole backbone and has no frozen stage; set it to null",
                )
        return self

    @model_validator(mode="after")
    def _parts_are_there(self) -> RunConfig:
        parts = self.task.parts(self.model)
        for number, stage in enumerate(self.stages):
            decay = stage.weight_decay
            given = {"lr": stage.lr.by_part()}
            given |= {} if isinstance(decay, float) else {"weight_decay": decay.by_part()}
            for key, numbers in given.items():
                for part, rate in numbers.items():
                    if rate and part not in parts:  # a rate of 0 for an absent part is harmless
                        raise ConfigError(
                            f"stages.{number}.{key}.{part}",
                            f"this task has no such part{remedy(part, parts)}",
                        )
        return self

    @model_validator(mode="after")
    def _rate_of_classes_is_meant(self) -> RunConfig:
        rated = [loss for loss in self.task.losses if _has_class_weights(loss)]
        for number, stage in enumerate(self.stages):
            if rated and "classes" not in stage.lr.model_fields_set:
                raise ConfigError(
                    f"stages.{number}.lr.classes",
                    f"missing, and loss {rated[0].name} has class"
                    " weights; give their rate, or 0 to freeze them",
                )
        return self

    @model_validator(mode="after")
    def _class_weights_are_there(self) -> RunConfig:
        if any(isinstance(loss, MarginSoftmaxConfig) for loss in self.task.losses):
            return self
        for number, stage in enumerate(self.stages):
            for key, allowed in (("classes", "carry"), ("softmax_over", "run")):
                if (given := getattr(stage, key)) != allowed:
                    raise ConfigError(
                        f"stages.{number}.{key}",
                        f"{given} is for the losses softmax, arcface, cosface and curricularface;"
                        f" {self._describe()} allows {allowed}",
                    )
        return self

    @model_validator(mode="after")
    def _there_is_a_margin(self) -> RunConfig:
        softmaxes = [loss for loss in self.task.losses if isinstance(loss, MarginSoftmaxConfig)]
        if any(loss.name != "softmax" for loss in softmaxes):
            return self
        for number, stage in enumerate(self.stages):
            if stage.margin is not None:
                raise ConfigError(
                    f"stages.{number}.margin",
                    f"is for the losses arcface, cosface and curricularface, not {self._describe()}",
                )
        return self

    @model_validator(mode="after")
    def _parts_of_the_embedding_are_members(self) -> RunConfig:
        groups = getattr(self.task, "metaclasses", None)
        if self.model.head and self.model.head.parts > 1 and groups is None:
            raise ConfigError(
                "model.head.parts", "needs task.metaclasses; set it, or set parts to 1"
            )
        if self.model.head and self.model.head.parts > 1 and getattr(self.task, "projector", None):
            raise ConfigError(
                "task.projector", "would mix the parts of model.head; drop one of the two"
            )
        if groups and getattr(self.task.losses[0], "classifier", "joint") == "separate":
            raise ConfigError(
                "task.loss.classifier",
                "is separate, but a metaclass mixes domains; set it to joint",
            )
        return self

    @model_validator(mode="after")
    def _layers_are_heard(self) -> RunConfig:
        if self.model.layers and self.compile:
            raise ConfigError(
                "compile", "torch.compile disables the hooks of model.layers; set compile to false"
            )
        return self

    @model_validator(mode="after")
    def _online_teachers_reach_something(self) -> RunConfig:
        if (
            isinstance(self.task, OnlineConfig)
            and self.task.reaches == "head"
            and not self.model.head
        ):
            raise ConfigError("task.reaches", "is head, but model.head is null; set it to backbone")
        return self

    @model_validator(mode="after")
    def _views_are_repeated_for_teachers(self) -> RunConfig:
        for number, stage in enumerate(self.stages):
            if stage.repeated_views is None:
                continue
            if self.task.name != "distillation":
                why = f"is for task distillation, and this is task {self.task.name}; set it to null"
            elif stage.cached_views:
                why = "cached_views already fixes the views of teachers; set it to null"
            elif self.retention and self.retention.generic:
                why = "is not supported with retention.generic; set it to null"
            else:
                continue
            raise ConfigError(f"stages.{number}.repeated_views", why)
        return self

    @model_validator(mode="after")
    def _blended_images_have_teachers_alone(self) -> RunConfig:
        for number, stage in enumerate(self.stages):
            if stage.augment.mixup and (why := unblendable(self.task)):
                raise ConfigError(f"stages.{number}.augment.mixup", f"{why}; set it to 0")
        return self

    @model_validator(mode="after")
    def _terms_have_batches_of_their_own(self) -> RunConfig:
        if not isinstance(self.task, DistillationConfig):
            return self
        some = [n for n, term in enumerate(self.task.criteria) if term.loss and term.domains]
        for number, stage in enumerate(self.stages):
            for place, term in enumerate(self.task.criteria):
                crowded = too_many_neighbours(term, stage.batch_size)
                if crowded:
                    raise ConfigError(f"task.criteria.{place}.relation", crowded)
            if some and isinstance(stage.sampler, MixedConfig):
                raise ConfigError(
                    f"stages.{number}.sampler",
                    f"mixes domains in a batch, but the loss of task.criteria.{some[0]} is for some"
                    " only; use dataset_size or balanced, or drop that term's domains",
                )
        return self

    def _describe(self) -> str:
        """Return the loss's name for a message, or the task's if it has none or several."""
        losses = self.task.losses
        return losses[0].name if len(losses) == 1 else f"task {self.task.name}"

    @model_validator(mode="after")
    def _new_class_weights_are_trained(self) -> RunConfig:
        for number, stage in enumerate(self.stages):
            if stage.classes == "reset" and not stage.lr.of("classes"):
                raise ConfigError(
                    f"stages.{number}.classes",
                    "reset with lr.classes 0 would leave class weights"
                    " random; raise lr.classes, or set classes: carry",
                )
        return self

    @model_validator(mode="after")
    def _there_is_something_to_retain(self) -> RunConfig:
        if self.retention is None:
            return self
        if self.model.backbone.pretrained is None:
            raise ConfigError(
                "retention", "model.backbone.pretrained is null; set retention to null"
            )
        if not any(stage.lr.trains_features for stage in self.stages):
            raise ConfigError("retention", "no stage trains the backbone; set retention to null")
        if self.retention.weights and not any(s.lr.trains_backbone for s in self.stages):
            raise ConfigError(
                "retention.weights",
                "no stage trains the backbone's own weights; set it to 0 (features holds adapters)",
            )
        return self

    @model_validator(mode="after")
    def _contrastive_training_adds_nothing(self) -> RunConfig:
        if self.task.name == "contrastive" and self.model.parts():
            raise ConfigError(
                f"model.{self.model.parts()[0]}",
                "task contrastive trains a plain CLIP; leave it out",
            )
        return self
