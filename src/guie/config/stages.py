"""The config of a stage of training: its data, views, rates, schedule."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from guie.config.base import BatchSize, Config, ConfigError, Pixels, PositiveInt
from guie.config.durations import Duration
from guie.config.model import Fraction
from guie.config.sampling import AugmentConfig, MixedConfig, NonNegative, Positive, SamplerConfig


class _ByPart(Config):
    """A number per part of the task: see `parts` of its config."""

    SUCH_AS: ClassVar = ("backbone", "head", "classes")

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, NonNegative] = Field(init=False)

    def of(self, part: str) -> float:
        """The part's number, 0 where none is given."""
        return self.by_part().get(part, 0.0)

    def by_part(self) -> dict[str, float]:
        """All numbers that are given."""
        return dict(self.model_extra or {})


class LearningRates(_ByPart):
    """Stratified: a rate per part of the task, backbone, head, classes and so on; 0 freezes it.

    `classes`, of class weights and proxies, is to be written out where a loss has some.
    """

    # From this block of the backbone on, another rate: {0: 0.0, 15: 1e-7} freezes blocks 0 to 14
    # and the stem below them. What comes before the first of these blocks and after the backbone's
    # last keeps `backbone`.
    blocks: dict[Annotated[int, Field(ge=0)], NonNegative] = {}

    @property
    def trains_backbone(self) -> bool:
        """All of the backbone, or some of its blocks."""
        return self.of("backbone") > 0 or any(self.blocks.values())

    @property
    def trains_features(self) -> bool:
        """The backbone, or what is added to it: does a step change the features of an image."""
        return self.trains_backbone or self.of("adapters") > 0 or self.of("prompts") > 0


class WeightDecays(_ByPart):
    """A weight decay per part of the task."""


def _number_or_parts(value: Any) -> str:
    return "parts" if isinstance(value, dict | WeightDecays) else "number"


# The tags keep pydantic from reporting what each of the two would have wanted.
WeightDecay = Annotated[
    Annotated[NonNegative, Tag("number")] | Annotated[WeightDecays, Tag("parts")],
    Discriminator(_number_or_parts),
]


class OptimizerConfig(Config):
    """AdamW decays the weights apart from the gradient, Adam and SGD add the decay to it."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    momentum: Fraction = 0.0  # of sgd

    @model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> OptimizerConfig:
        if self.momentum and self.name != "sgd":
            raise ConfigError("momentum", f"is of sgd, and the optimizer is {self.name}; drop one")
        return self


class StepSchedule(Config):
    """The rate is multiplied by `factor` at each of these epochs of the stage."""

    name: Literal["step"]
    epochs: list[Positive] = Field(min_length=1)
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1


class ExponentialSchedule(Config):
    """The rate is multiplied by `factor` again and again after the warm-up, in stairs."""

    name: Literal["exponential"]
    every: Duration = Duration(1, "epochs")
    factor: Annotated[float, Field(gt=0, lt=1)]


class ConstantSchedule(Config):
    """The peak rate, after the warm-up."""

    name: Literal["constant"]


class CosineSchedule(Config):
    """Half a cosine from the peak rate to `end` of it, over what the warm-up leaves of the stage."""

    name: Literal["cosine"] = "cosine"
    end: Fraction = 0.0
    # In stairs of this length: the challenge's 2nd (utils.py) and 5th place (train_arcface.py,
    # cell 28) set their rates once an epoch. null: at every step
    every: Duration | None = None


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
    epochs: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    batch_size: BatchSize = 128  # over all processes
    accumulate: PositiveInt = 1  # micro-batches a step: less memory, more time
    lr: LearningRates
    optimizer: Annotated[OptimizerConfig, BeforeValidator(_named)] = OptimizerConfig()
    schedule: Schedule = CosineSchedule()
    warmup: Duration | None = None  # in which the rate rises to its peak; null: it begins there
    warmup_start: Fraction = 0.0  # of the peak, where it rises from; .01 in the 2nd place's
    # It rises in stairs of this length (5th place); null: at every step
    warmup_every: Duration | None = None
    weight_decay: WeightDecay = 1e-4  # of weight matrices
    # Of biases, norms and other vectors too, as where all parameters are handed to torch's
    # optimisers: the challenge's 1st, 2nd, 4th and 5th place, UniFEx, UnED
    decay_vectors: bool = False
    # Of the backbone's rate, per block towards the stem
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_grad_norm: Positive | None = None
    clip_grad_value: Positive | None = None  # of each number of a gradient, either way
    sam_rho: Positive | None = None  # sharpness-aware minimisation; two passes a step
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None  # what is scored and saved
    ema_goes_on: Literal["raw", "averaged"] = "raw"  # which weights the next stage begins with
    size_px: Pixels | None = None  # null: the model's image size
    stride_px: Pixels | None = None  # of the patches; null: the backbone's
    # Frozen backbone: the features of so many random views of each image are computed once, kept on
    # disk, and trained on in turn. null: images go through the backbone
    cached_views: PositiveInt | None = None
    # So many random views of each image come in turn; what teachers make of them is computed once, and
    # kept on disk. null: teachers look at every batch
    repeated_views: PositiveInt | None = None
    classes: Literal["carry", "reset"] = "carry"  # reset: class weights start anew in this stage
    softmax_over: Literal["run", "stage"] = "run"  # stage: the classes of its own domains alone
    margin: NonNegative | None = None  # in the unit of the loss's own; null: that one
    sampler: SamplerConfig = MixedConfig()
    # null: every domain of the manifest
    domains: Annotated[list[str], Field(min_length=1)] | None = None
    augment: AugmentConfig = AugmentConfig()
    validate_every: Duration | None = None  # null: at the stage's end
    patience: PositiveInt | None = None  # validations without a better score until the stage ends

    @model_validator(mode="after")
    def _one_rate_for_a_block(self) -> StageConfig:
        if self.lr.blocks and self.layer_decay != 1:
            raise ValueError(
                "lr.blocks and layer_decay both say how fast a block learns; set layer_decay to 1,"
                " or lr.blocks to {}"
            )
        return self

    @model_validator(mode="after")
    def _averaged_weights_are_there(self) -> StageConfig:
        if self.ema_goes_on == "averaged" and self.ema_decay is None:
            raise ConfigError("ema_goes_on", "ema_decay is null, so there is no average")
        return self

    @model_validator(mode="after")
    def _warmup_ends(self) -> StageConfig:
        for key in ("warmup_start", "warmup_every"):
            if getattr(self, key) and not self.warmup:
                raise ConfigError(key, "is of a warm-up, and there is none; set warmup, or drop it")
        warmup = self.warmup
        if warmup and warmup.unit == "epochs" and warmup.number >= self.epochs:
            raise ConfigError(
                "warmup",
                f"the stage's {self.epochs:g} epochs would end before the rates are at their peak",
            )
        return self

    @model_validator(mode="after")
    def _cached_features_stay_true(self) -> StageConfig:
        if self.cached_views and self.lr.trains_features:
            raise ConfigError(
                "cached_views",
                "features are computed once, and this stage trains the backbone or what is added to"
                " it; set lr.backbone, lr.adapters and lr.prompts to 0 and lr.blocks to {}, or"
                " cached_views to null",
            )
        return self
