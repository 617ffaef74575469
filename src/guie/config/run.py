"""The config of a training run: data, model, task, stages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from guie.config.base import Config, merged
from guie.config.losses import ArcFaceConfig, LossConfig
from guie.config.model import ModelConfig
from guie.config.stages import NonNegative, StageConfig


class DataConfig(Config):
    """Where the images are."""

    manifest: str
    root: str | None = None  # default: the manifest's folder
    workers: Annotated[int, Field(ge=0)] = 2


class ClassificationConfig(Config):
    """A loss on the labels; by default a margin softmax over all classes of all domains."""

    name: Literal["classification"] = "classification"
    loss: LossConfig = ArcFaceConfig()


class GenericImagesConfig(Config):
    """Images of any kind, on which the embedding is to stay as it was pretrained."""

    manifest: str
    root: str | None = None  # default: the manifest's folder
    split: Literal["train", "val"] = "train"
    batch_size: PositiveInt = 32  # over all processes


class RetentionConfig(Config):
    """Terms against forgetting, added to the loss in stages that train the backbone."""

    # times the squared distance of the backbone's weights from the pretrained ones (L2-SP)
    weights: NonNegative = 0.0
    # times the mean of 1 - cosine between the backbone's features and the pretrained ones'
    features: NonNegative = 0.0
    generic: GenericImagesConfig | None = None  # null: of the training images themselves


class ContrastiveConfig(Config):
    """Image-text contrast on the manifest's captions: how a CLIP is pretrained."""

    name: Literal["contrastive"]


TaskConfig = Annotated[ClassificationConfig | ContrastiveConfig, Field(discriminator="name")]


class RunConfig(Config):
    """One training run; written into its folder as resolved."""

    name: str = Field(pattern=r"^[\w.-]+$")
    out: str = "runs"
    seed: Annotated[int, Field(ge=0)] = 0
    precision: Literal["no", "bf16", "fp16"] = "no"
    log_every_steps: PositiveInt = 20
    checkpoint_every_steps: PositiveInt = 500
    keep_checkpoints: PositiveInt = 2  # the newest; a damaged one falls back on the one before
    gradient_checkpointing: bool = False  # of the backbone: less memory, a third more time
    channels_last: bool = False  # memory format of images and convolutions
    compile: bool = False  # torch.compile: minutes at the start of each stage, faster steps
    on_out_of_memory: Literal["stop", "halve"] = "stop"  # halve: twice the micro-batches, go on
    data: DataConfig
    model: ModelConfig
    task: TaskConfig = ClassificationConfig()
    retention: RetentionConfig | None = None
    stages: list[StageConfig] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, values: Any) -> Any:
        """Fill every stage from the `train` block, which is the single stage where none is given."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if isinstance(values.get("task"), dict):
            values["task"] = {"name": "classification", **values["task"]}
        if not isinstance(values.get("train"), dict):
            return values
        common = values.pop("train")
        stages = values.get("stages") or [{}]
        if isinstance(stages, list) and all(isinstance(stage, dict) for stage in stages):
            values["stages"] = [merged(common, stage) for stage in stages]
        return values
