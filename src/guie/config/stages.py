"""The config of a stage of training: its data, views, rates, schedule."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from guie.config.base import Config
from guie.config.model import Fraction
from guie.config.sampling import MixedConfig, SamplerConfig

NonNegative = Annotated[float, Field(ge=0)]


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
    # From this block of the backbone on, another rate: {0: 0.0, 15: 1e-7} freezes blocks 0 to 14
    # and the stem below them. What comes after the last block keeps `backbone`.
    blocks: dict[Annotated[int, Field(ge=0)], NonNegative] = {}


class WeightDecays(Config):
    """A weight decay per part of the model."""

    backbone: NonNegative = 0.0
    head: NonNegative = 0.0
    classes: NonNegative = 0.0


class OptimizerConfig(Config):
    """AdamW decays the weights apart from the gradient, Adam and SGD add the decay to it."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    momentum: Fraction = 0.0  # of sgd


class StepSchedule(Config):
    """The rate is multiplied by `factor` at each of these epochs of the stage."""

    name: Literal["step"]
    epochs: list[PositiveFloat] = Field(min_length=1)
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1


class ExponentialSchedule(Config):
    """The rate is multiplied by `factor` every so many epochs of the stage, in stairs."""

    name: Literal["exponential"]
    every_epochs: PositiveFloat = 1.0
    factor: Annotated[float, Field(gt=0, lt=1)]


class ConstantSchedule(Config):
    """The peak rate, after the warm-up."""

    name: Literal["constant"]


class CosineSchedule(Config):
    """Half a cosine from the peak rate to `end` of it."""

    name: Literal["cosine"] = "cosine"
    end: Fraction = 0.0


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Schedule = Annotated[
    ConstantSchedule | CosineSchedule | StepSchedule | ExponentialSchedule,
    Field(discriminator="name"),
    BeforeValidator(_named),
]


class StageConfig(Config):
    """One stage of training; what a stage does not say it takes from `train`."""

    name: str = "train"
    epochs: PositiveFloat
    batch_size: PositiveInt = 128  # over all processes
    accumulate: PositiveInt = 1  # micro-batches a step: less memory, more time
    lr: LearningRates
    optimizer: Annotated[OptimizerConfig, BeforeValidator(_named)] = OptimizerConfig()
    schedule: Schedule = CosineSchedule()
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    warmup_epochs: NonNegative = 0.0  # in place of warmup_steps
    weight_decay: NonNegative | WeightDecays = 1e-4
    layer_decay: Annotated[float, Field(gt=0, le=1)] = (
        1.0  # of the rate, per block towards the stem
    )
    clip_grad_norm: PositiveFloat | None = None
    sam_rho: PositiveFloat | None = None  # sharpness-aware minimisation; two passes a step
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None  # what is scored and saved
    size_px: PositiveInt | None = None  # null: the model's image size
    stride_px: PositiveInt | None = None  # of the patches; null: the backbone's
    # Frozen backbone: the features of so many random views of each image are computed once, kept on
    # disk, and trained on in turn. null: images go through the backbone
    cached_views: PositiveInt | None = None
    classes: Literal["carry", "reset"] = "carry"  # reset: class weights start anew in this stage
    softmax_over: Literal["run", "stage"] = "run"  # stage: the classes of its own domains alone
    sampler: SamplerConfig = MixedConfig()
    domains: list[str] | None = None  # null: every domain of the manifest
    augment: AugmentConfig = AugmentConfig()
    validate_every_steps: PositiveInt | None = None  # null: at the stage's end
    patience: PositiveInt | None = None  # validations without a better score until the stage ends
