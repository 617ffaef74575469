"""The config of a training run: data, model, task, stages."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from guie.config.base import Config, merged
from guie.config.losses import ArcFaceConfig, LossConfig
from guie.config.sampling import MixedConfig, SamplerConfig

NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class DataConfig(Config):
    """Where the images are."""

    manifest: str
    root: str | None = None  # default: the manifest's folder
    workers: Annotated[int, Field(ge=0)] = 2


# Arguments of the libraries that would load weights past `pretrained` and its check.
WEIGHT_ARGUMENTS = {
    *("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "load_weights"),
    *("pretrained_hf", "pretrained_image", "pretrained_image_path", "pretrained_text"),
    *("pretrained_text_path", "weights_only"),
}


class BackboneConfig(Config):
    """A pretrained image tower, by its library's own name and weights."""

    library: Literal["open_clip", "timm"]
    name: str
    pretrained: str | None = None  # hub tag, or a weights file; null: random
    sha256: str | None = None  # quoted; of the weights file, or its first digits; null: unchecked
    revision: str | None = None  # commit or branch of the tag's repository; null: its newest
    # open_clip only. projected: CLIP's shared space; pooled: the tower's output before that
    features: Literal["projected", "pooled"] = "projected"
    kwargs: dict[str, Any] = {}  # passed to the library's create_model

    @model_validator(mode="after")
    def _weights_are_checked(self) -> BackboneConfig:
        if self.sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{8,64}", self.sha256):
            raise ValueError(f"sha256 {self.sha256!r}: 64 hex digits, or at least the first 8")
        if (self.sha256 or self.revision) and not self.pretrained:
            raise ValueError("sha256 and revision are of pretrained weights; pretrained is null")
        if ":" in self.name:
            raise ValueError(f"name {self.name!r}: write the library's name, and pretrained: <tag>")
        bypass = sorted(self.kwargs.keys() & WEIGHT_ARGUMENTS)
        if bypass:
            raise ValueError(f"kwargs {', '.join(bypass)}: weights are given by pretrained alone")
        return self


class ImageConfig(Config):
    """The preprocessing that training, validation and the submission share."""

    size_px: PositiveInt
    fit: Literal["squash", "pad", "crop"] = "squash"
    mean: list[float] | None = Field(None, min_length=3, max_length=3)  # null: the backbone's
    std: list[PositiveFloat] | None = Field(None, min_length=3, max_length=3)


class HeadConfig(Config):
    """norm -> dropout -> Linear -> L2."""

    norm: Literal["l2", "bn", "none"] = "l2"
    dropout: Fraction = 0.0
    dim: PositiveInt = 64


class ModelConfig(Config):
    """Backbone and head; without a head the embedding is the backbone's, at native dimension."""

    backbone: BackboneConfig
    image: ImageConfig
    head: HeadConfig | None = HeadConfig()


class ClassificationConfig(Config):
    """A loss on the labels; by default a margin softmax over all classes of all domains."""

    name: Literal["classification"] = "classification"
    loss: LossConfig = ArcFaceConfig()


class ContrastiveConfig(Config):
    """Image-text contrast on the manifest's captions: how a CLIP is pretrained."""

    name: Literal["contrastive"]


TaskConfig = Annotated[ClassificationConfig | ContrastiveConfig, Field(discriminator="name")]


class AugmentConfig(Config):
    """Random views of a training image. The resize comes last and is the model's own."""

    crop_scale: list[PositiveFloat] = Field([0.5, 1.0], min_length=2, max_length=2)  # of the area
    crop_ratio: list[PositiveFloat] = Field([0.8, 1.25], min_length=2, max_length=2)
    flip: Fraction = 0.0  # probability of a left-right flip
    color: NonNegative = 0.0  # strength of brightness, contrast and saturation jitter
    gray: Fraction = 0.0  # probability of losing all colour
    blur: Fraction = 0.0  # probability
    erase: Fraction = 0.0  # probability of a random grey box


class LearningRates(Config):
    """Stratified: a rate per part of the model. 0 freezes the part."""

    backbone: NonNegative = 0.0
    head: NonNegative = 0.0
    classes: NonNegative = 0.0  # the class weights of the margin softmax


class StageConfig(Config):
    """One stage of training; what a stage does not say it takes from `train`."""

    name: str = "train"
    epochs: PositiveFloat
    batch_size: PositiveInt = 128  # over all processes
    accumulate: PositiveInt = 1  # micro-batches a step: less memory, more time
    lr: LearningRates
    schedule: Literal["constant", "cosine"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: NonNegative = 1e-4
    layer_decay: Annotated[float, Field(gt=0, le=1)] = (
        1.0  # of the rate, per block towards the stem
    )
    clip_grad_norm: PositiveFloat | None = None
    sam_rho: PositiveFloat | None = None  # sharpness-aware minimisation; two passes a step
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None  # what is scored and saved
    size_px: PositiveInt | None = None  # null: the model's image size
    sampler: SamplerConfig = MixedConfig()
    domains: list[str] | None = None  # null: every domain of the manifest
    augment: AugmentConfig = AugmentConfig()
    validate_every_steps: PositiveInt | None = None  # null: at the stage's end
    patience: PositiveInt | None = None  # validations without a better score until the stage ends


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
    compile: bool = False  # torch.compile: minutes at the start of each stage, faster steps
    on_out_of_memory: Literal["stop", "halve"] = "stop"  # halve: twice the micro-batches, go on
    data: DataConfig
    model: ModelConfig
    task: TaskConfig = ClassificationConfig()
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
