"""The config of a training stage: data, views, learning rates, schedule."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat

from guie.config.durations import Duration
from guie.config.model import BatchNorm, BatchNormMode, Fraction
from guie.config.sampling import AugmentConfig, MixedConfig, SamplerConfig
from guie.config.types import BatchSize, ByName, Config, Either, Fault, Names, Pixels, PositiveInt


class _ByPart(Config):
    """A number per part of the task: see `parts` of the task's config."""

    SUCH_AS: ClassVar = ("backbone", "head", "classes")

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, NonNegativeFloat] = Field(init=False)

    def of(self, part: str) -> float:
        """Return the part's number, 0 if not given."""
        return self.by_part().get(part, 0.0)

    def by_part(self) -> dict[str, float]:
        """Return all given numbers by part."""
        return dict(self.model_extra or {})


class LearningRates(_ByPart):
    """A learning rate per part of the task; 0 freezes it.

    `classes`, for class weights and proxies, is required if a loss has them.
    """

    # from this backbone block on: {0: 0.0, 15: 1e-7} freezes stem and blocks 0 to 14; other layers have
    # `backbone`
    blocks: dict[Annotated[int, Field(ge=0)], NonNegativeFloat] = {}

    @property
    def trains_backbone(self) -> bool:
        """Whether the backbone, or some of its blocks, trains."""
        return self.of("backbone") > 0 or any(self.blocks.values())

    @property
    def trains_features(self) -> bool:
        """Whether the backbone, adapters or prompts train, so that image features change."""
        return self.trains_backbone or self.of("adapters") > 0 or self.of("prompts") > 0


class WeightDecays(_ByPart):
    """A weight decay per part."""


class OptimizerConfig(Config):
    """AdamW decouples weight decay from the gradient; Adam and SGD add it."""

    NEEDS = {"momentum": ("name", "sgd")}

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    momentum: Fraction = 0.0  # for sgd


class StepSchedule(Config):
    """Multiply the rate by `factor` at each of these epochs."""

    name: Literal["step"]
    epochs: list[PositiveFloat] = Field(min_length=1)  # counted from the start of the stage
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1  # on the rate, each time


class ExponentialSchedule(Config):
    """Multiply the rate by `factor` after every period."""

    name: Literal["exponential"]
    every: Duration = Duration(1, "epochs")  # after the warm-up
    factor: Annotated[float, Field(gt=0, lt=1)]  # on the rate, each time


class ConstantSchedule(Config):
    """Keep the peak rate after the warm-up."""

    name: Literal["constant"]


class CosineSchedule(Config):
    """From the peak rate to `end` times the peak, after the warm-up."""

    name: Literal["cosine"] = "cosine"
    end: Fraction = 0.0  # final share of the peak
    # update once per period (2nd and 5th place: 1 epoch); null: at every step
    every: Duration | None = None


Schedule = Annotated[
    ConstantSchedule | CosineSchedule | StepSchedule | ExponentialSchedule,
    Field(discriminator="name"),
    ByName,
]


class StageConfig(Config):
    """One stage; missing keys come from `train`."""

    NEEDS = {"ema_carry": "ema_decay", "warmup_start": "warmup", "warmup_every": "warmup"}

    name: str = "train"  # in logs
    # passes over the stage's images; may be a fraction
    epochs: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    batch_size: BatchSize = 128  # over all processes
    # micro-batches per step: less memory, more time. Losses that compare images still see the batch; for
    # others, the head's batch normalisation sees a micro-batch
    accumulate: PositiveInt = 1
    lr: LearningRates
    optimizer: Annotated[OptimizerConfig, ByName] = OptimizerConfig()
    # carry: parameters that trained in the stage before keep their moments
    optimizer_state: Literal["reset", "carry"] = "reset"
    schedule: Schedule = CosineSchedule()
    warmup: Duration | None = None  # rise to the peak rate
    warmup_start: Fraction = 0.0  # share of the peak; 2nd place: .01
    warmup_every: Duration | None = None  # raise once per period (5th place); null: at every step
    weight_decay: Either[NonNegativeFloat, WeightDecays] = 1e-4  # of matrices called weight or proj
    # decay biases and norms too (1st, 2nd, 4th, 5th place, UniFEx, UnED)
    decay_vectors: bool = False
    decay_embeddings: bool = False  # tokens, position embeddings, bias tables, prompts too
    # factor on the backbone's rate per block towards the stem
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_grad_norm: PositiveFloat | None = None  # of all gradients together
    clip_grad_value: PositiveFloat | None = None  # of each element, either way
    # of the backbone. frozen: by pretraining's statistics (modules without it learn theirs); train: by a
    # process's micro-batch, the first's statistics are saved; synced: by all processes, on GPUs. {layer4:
    # train} freezes the others
    batch_norm: BatchNorm = "frozen"
    sam_rho: PositiveFloat | None = None  # sharpness-aware minimisation, two passes per step
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None  # the average is scored and saved
    ema_carry: Literal["raw", "averaged"] = "raw"  # weights that the next stage starts from
    size_px: Pixels | None = None  # null: the model's image size
    stride_px: Pixels | None = None  # of the patches; null: the backbone's
    # of a frozen backbone: cached features of so many random views per image
    cached_views: PositiveInt | None = None
    # cached outputs of teachers on so many random views per image
    repeated_views: PositiveInt | None = None
    classes: Literal["carry", "reset"] = "carry"  # reset: reinitialise class weights
    softmax_over: Literal["run", "stage"] = "run"  # stage: only classes of its domains
    margin: NonNegativeFloat | None = None  # null: the loss's
    sampler: SamplerConfig = MixedConfig()
    domains: Names | None = None  # null: all
    augment: AugmentConfig = AugmentConfig()
    validate_every: Duration | None = None  # null: at the stage's end
    # validations without gain before the stage ends
    patience: PositiveInt | None = None

    @property
    def batch_norm_modes(self) -> set[BatchNormMode]:
        """How BatchNorm layers are trained: by `train`, `synced`, both or none."""
        modes = [self.batch_norm] if isinstance(self.batch_norm, str) else self.batch_norm.values()
        return {mode for mode in modes if mode != "frozen"}

    def faults(self) -> Iterator[Fault]:
        if self.lr.blocks and self.layer_decay != 1:
            yield "", "lr.blocks and layer_decay both set the rates of blocks; drop one of the two"
        if self.warmup and self.warmup.steps(1) >= self.epochs and self.warmup.unit == "epochs":
            yield "warmup", f"must be shorter than the stage's {self.epochs:g} epochs"
        if self.cached_views and (self.lr.trains_features or self.batch_norm_modes):
            once = "features are computed once, but this stage changes them"
            rates = "lr.backbone, lr.adapters and lr.prompts to 0 and lr.blocks to {}"
            yield "cached_views", f"{once}; set batch_norm to frozen, {rates}, or this to null"
