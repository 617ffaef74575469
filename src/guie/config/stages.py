"""The config of a training stage: data, views, learning rates, schedule."""

from __future__ import annotations

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
    """A learning rate per part of the task (backbone, head, classes, ...); 0 freezes the part.

    `classes`, for class weights and proxies, is required if a loss has them.
    """

    # The rate from this backbone block on: {0: 0.0, 15: 1e-7} freezes the stem and blocks 0 to 14.
    # Layers before the first given block, and after the last of the backbone, keep the rate `backbone`.
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
    """A weight decay per part of the task."""


class OptimizerConfig(Config):
    """The optimizer. AdamW decouples weight decay from the gradient; Adam and SGD add it."""

    NEEDS = {"momentum": ("name", "sgd")}

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    momentum: Fraction = 0.0  # for sgd


class StepSchedule(Config):
    """Multiply the rate by `factor` at each of these epochs of the stage."""

    name: Literal["step"]
    epochs: list[PositiveFloat] = Field(min_length=1)  # counted from the start of the stage
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1  # on the rate, each time


class ExponentialSchedule(Config):
    """Multiply the rate by `factor` after every such period following the warm-up."""

    name: Literal["exponential"]
    every: Duration = Duration(1, "epochs")  # the period
    factor: Annotated[float, Field(gt=0, lt=1)]  # on the rate, each time


class ConstantSchedule(Config):
    """Keep the peak rate after the warm-up."""

    name: Literal["constant"]


class CosineSchedule(Config):
    """Cosine decay from the peak rate to `end` times the peak, from the warm-up to the stage's end."""

    name: Literal["cosine"] = "cosine"
    end: Fraction = 0.0  # final rate, as a fraction of the peak
    # Update the rate once per period, as the challenge's 2nd (utils.py) and 5th place (train_arcface.py, cell
    # 28) once an epoch. null: at every step
    every: Duration | None = None


Schedule = Annotated[
    ConstantSchedule | CosineSchedule | StepSchedule | ExponentialSchedule,
    Field(discriminator="name"),
    ByName,
]


class StageConfig(Config):
    """One stage of training; missing keys come from the block `train`."""

    NEEDS = {"ema_carry": "ema_decay", "warmup_start": "warmup", "warmup_every": "warmup"}

    name: str = "train"  # in logs
    # Passes over the stage's images; may be a fraction
    epochs: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    batch_size: BatchSize = 128  # over all processes
    # Micro-batches per step: less memory, more time. A loss that compares images sees the whole batch, by one
    # more forward pass of the backbone; with others, batch normalisation of the head sees a micro-batch
    accumulate: PositiveInt = 1
    lr: LearningRates
    optimizer: Annotated[OptimizerConfig, ByName] = OptimizerConfig()
    # carry: parameters that trained in the stage before keep their moments and step counts
    optimizer_state: Literal["reset", "carry"] = "reset"
    schedule: Schedule = CosineSchedule()
    warmup: Duration | None = None  # rise to the peak rate; null: start at the peak
    warmup_start: Fraction = 0.0  # start, as a fraction of the peak; 2nd place: .01
    # Raise the rate once per period (5th place); null: at every step
    warmup_every: Duration | None = None
    weight_decay: Either[NonNegativeFloat, WeightDecays] = 1e-4  # of matrices called weight or proj
    # Decay biases and norms too, as torch does by default: 1st, 2nd, 4th and 5th place, UniFEx, UnED
    decay_vectors: bool = False
    decay_embeddings: bool = False  # decay tokens, position embeddings, bias tables and prompts too
    # Factor on the backbone's rate per block towards the stem
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_grad_norm: PositiveFloat | None = None  # of all gradients together; null: no clipping
    clip_grad_value: PositiveFloat | None = None  # per gradient element, either way
    # Batch normalisation of the backbone. frozen: by the statistics of pretraining; modules without it
    # learn theirs. train: by those of the micro-batch, even where weights are frozen; each process
    # uses its own images, and the first one's running statistics are saved. synced: by those of all processes
    # (SyncBatchNorm, GPUs only). A mapping sets modules by name: {layer4: train} freezes the others
    batch_norm: BatchNorm = "frozen"
    sam_rho: PositiveFloat | None = None  # sharpness-aware minimisation; two passes per step
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None  # its average is scored and saved
    ema_carry: Literal["raw", "averaged"] = "raw"  # weights that the next stage starts from
    size_px: Pixels | None = None  # null: the model's image size
    stride_px: Pixels | None = None  # of the patches; null: the backbone's
    # Frozen backbone: cycle through the cached features of so many random views per image. null: run it
    cached_views: PositiveInt | None = None
    # Cycle through so many random views per image, with cached outputs of teachers. null: run teachers
    repeated_views: PositiveInt | None = None
    classes: Literal["carry", "reset"] = "carry"  # reset: reinitialise class weights
    softmax_over: Literal["run", "stage"] = "run"  # stage: only classes of its domains
    margin: NonNegativeFloat | None = None  # in the loss's unit; null: the loss's margin
    sampler: SamplerConfig = MixedConfig()
    domains: Names | None = None  # null: every domain of the manifest
    augment: AugmentConfig = AugmentConfig()
    validate_every: Duration | None = None  # null: at the stage's end
    patience: PositiveInt | None = None  # validations without gain before the stage ends

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
