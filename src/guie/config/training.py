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


def _no_for_false(value: Any) -> Any:
    return "no" if value is False else value


class DataConfig(Config):
    """Where the images are."""

    manifest: str
    root: str | None = None  # default: the manifest's folder
    # domains that neither training nor validation sees: what the embedding is worth on the unseen
    leave_out: list[str] = []
    workers: Workers = 2


class GenericImagesConfig(Config):
    """Images of any kind, on which the embedding is to stay as it was pretrained."""

    manifest: str
    root: str | None = None  # default: the manifest's folder
    split: Literal["train", "val"] = "train"
    batch_size: BatchSize = 32  # over all processes


class RetentionConfig(Config):
    """Terms against forgetting, added to the loss in stages that train the backbone."""

    # times the squared distance of the backbone's weights from the pretrained ones (L2-SP)
    weights: NonNegative = 0.0
    # times the mean of 1 - cosine between the backbone's features and the pretrained ones'
    features: NonNegative = 0.0
    generic: GenericImagesConfig | None = None  # null: of the training images themselves

    @model_validator(mode="after")
    def _does_something(self) -> RetentionConfig:
        if not (self.weights or self.features):
            raise ValueError("weights and features are both 0; raise one, or set retention to null")
        if self.generic and not self.features:
            raise ValueError("generic images are of features, which is 0; raise it, or drop them")
        return self


def _has_class_weights(loss: LossConfig) -> bool:
    return isinstance(loss, ClassWeightsConfig) or getattr(loss, "learn_boundary", False)


class RunConfig(Config):
    """One training run; written into its folder as resolved."""

    COMMON: ClassVar = ("train", "stages")

    name: Name
    out: str = "runs"
    # Any model of the same tower, a run or a soup of runs: its weights are what this one begins with
    # (class weights begin anew; `retention` still holds to the pretrained ones). null: pretrained
    start_from: str | None = None
    seed: Seed = 0
    # YAML reads a bare no as false
    precision: Annotated[Literal["no", "bf16", "fp16"], BeforeValidator(_no_for_false)] = "no"
    log_every: Steps = 20
    checkpoint_every: Steps = 500
    keep_checkpoints: PositiveInt = 2  # the newest; a damaged one falls back on the one before
    # Frozen weights that are the pretrained ones are not written into the run's folder; true: they
    # are, and the folder needs no other file
    copy_frozen: bool = False
    gradient_checkpointing: bool = False  # of the backbone: less memory, a third more time
    channels_last: bool = False  # memory format of images and convolutions
    compile: bool = False  # torch.compile: minutes at the start of each stage, faster steps
    on_out_of_memory: Literal["stop", "halve"] = "stop"  # halve: twice the micro-batches, go on
    data: DataConfig
    model: ModelConfig
    task: TaskConfig = ClassificationConfig()
    retention: RetentionConfig | None = None
    stages: list[StageConfig] = Field(min_length=1)

    @property
    def base(self) -> BackboneConfig | None:
        """The pretrained weights that a run's files may leave out; None: they leave out none."""
        return None if self.copy_frozen else self.model.backbone

    @model_validator(mode="after")
    def _cached_views_have_a_head(self) -> RunConfig:
        for number, stage in enumerate(self.stages):
            if self.task.name == "contrastive" and stage.cached_views:
                raise ConfigError(
                    f"stages.{number}.cached_views",
                    "task contrastive trains whole towers and has no frozen stage; set it to null",
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
                    if rate and part not in parts:  # there is no harm in freezing nothing
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
                    f"is left out, and loss {rated[0].name} has class"
                    " weights; give their rate, or write 0 to leave them as they are",
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
                "model.head.parts", "is of an ensemble's members; set task.metaclasses, or drop it"
            )
        if self.model.head and self.model.head.parts > 1 and getattr(self.task, "projector", None):
            raise ConfigError(
                "task.projector", "would mix the parts of model.head; drop one of the two"
            )
        if groups and getattr(self.task.losses[0], "classifier", "joint") == "separate":
            raise ConfigError(
                "task.loss.classifier", "is separate, and a metaclass has classes of every domain"
            )
        return self

    @model_validator(mode="after")
    def _layers_are_heard(self) -> RunConfig:
        if self.model.layers and self.compile:
            raise ConfigError(
                "compile", "leaves nothing of model.layers to be heard; set it to false"
            )
        return self

    @model_validator(mode="after")
    def _online_teachers_reach_something(self) -> RunConfig:
        if (
            isinstance(self.task, OnlineConfig)
            and self.task.reaches == "head"
            and not self.model.head
        ):
            raise ConfigError("task.reaches", "is head, and model.head is null; set it to backbone")
        return self

    @model_validator(mode="after")
    def _views_are_repeated_for_teachers(self) -> RunConfig:
        for number, stage in enumerate(self.stages):
            if stage.repeated_views is None:
                continue
            if self.task.name != "distillation":
                why = f"is of task distillation, and this is task {self.task.name}; set it to null"
            elif stage.cached_views:
                why = "cached_views says already which views teachers are shown; set it to null"
            elif self.retention and self.retention.generic:
                why = "does not go with retention.generic yet; set it to null"
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
                    f"mixes domains in a batch, and the loss of task.criteria.{some[0]} is of some"
                    " alone; take dataset_size or balanced, or drop that term's domains",
                )
        return self

    def _describe(self) -> str:
        """What is trained by, in a message: the loss, or the task of none or several."""
        losses = self.task.losses
        return losses[0].name if len(losses) == 1 else f"task {self.task.name}"

    @model_validator(mode="after")
    def _new_class_weights_are_trained(self) -> RunConfig:
        for number, stage in enumerate(self.stages):
            if stage.classes == "reset" and not stage.lr.of("classes"):
                raise ConfigError(
                    f"stages.{number}.classes",
                    "reset with lr.classes 0 would leave class weights"
                    " as they are drawn; raise lr.classes, or set classes: carry",
                )
        return self

    @model_validator(mode="after")
    def _there_is_something_to_retain(self) -> RunConfig:
        if self.retention is None:
            return self
        if self.model.backbone.pretrained is None:
            raise ConfigError("retention", "model.backbone.pretrained is null: nothing to retain")
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
                "task contrastive trains a CLIP as it is; leave them out",
            )
        return self
