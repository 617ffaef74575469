"""The config of a training run: data, model, task, stages."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat

from guie.base.errors import UserError
from guie.config.distillation import DistillationConfig, OnlineConfig, Perplexity, SndConfig, Task
from guie.config.durations import Steps
from guie.config.losses import (
    PER_IMAGE,
    ArcFaceConfig,
    ClassWeightsConfig,
    CustomLossConfig,
    LossConfig,
    MarginLossConfig,
    MarginSoftmaxConfig,
    MetaclassesConfig,
)
from guie.config.model import BackboneConfig, ModelConfig
from guie.config.sampling import MixedConfig, ShardsConfig
from guie.config.stages import StageConfig
from guie.config.types import (
    BatchSize,
    Config,
    Fault,
    Images,
    Name,
    Output,
    PositiveInt,
    Seed,
    Width,
    Workers,
    remedy,
)

# Changing these gives the same run; for the first two up to rounding, unless batch normalisation sees them
FREE = {"accumulate", "on_out_of_memory", "workers", "keep_checkpoints", "checkpoint_every"}
FREE |= {"copy_frozen", "trackers"}
# Names of accelerate's trackers, which are names of modules too
Tracker = Literal[
    "tensorboard", "wandb", "mlflow", "comet_ml", "clearml", "dvclive", "aim", "swanlab", "trackio"
]


class ClassificationConfig(Task):
    """A loss on the labels."""

    NEEDS = {"projector_input": "projector"}

    name: Literal["classification"] = "classification"
    loss: LossConfig = ArcFaceConfig()
    metaclasses: MetaclassesConfig | None = None  # null: the classes themselves
    # widths below model.head.dim that train as embeddings too (Matryoshka), with own class weights;
    # export.py --dim cuts to one
    nested: list[Width] = []
    # widths of Linears, ReLUs between, from embedding to loss in training (Vo and Hays, 3.3)
    projector: list[Width] = []
    # embedding: of unit length; relu: a ReLU of the head's output
    projector_input: Literal["embedding", "relu"] = "embedding"

    @property
    def losses(self) -> list[LossConfig]:
        return [self.loss]

    @property
    def compares_images(self) -> bool:
        return not isinstance(self.loss, PER_IMAGE)

    def parts(self, model: ModelConfig) -> list[str]:
        return [*model.parts(), "classes", *(["projector"] if self.projector else [])]


class ContrastiveConfig(Task):
    """CLIP's image-text loss on the manifest's captions."""

    name: Literal["contrastive"]

    def parts(self, model: ModelConfig) -> list[str]:
        return ["backbone"]


TaskConfig = Annotated[
    ClassificationConfig | DistillationConfig | OnlineConfig | ContrastiveConfig,
    Field(discriminator="name"),
    BeforeValidator(lambda t: {"name": "classification", **t} if isinstance(t, dict) else t),
]


class DataConfig(Images):
    """The training and validation data."""

    leave_out: list[str] = []  # domains excluded from training and validation
    # loaders per process; null: its share of the cores, at most 16
    workers: Workers | None = None


class GenericImagesConfig(Images):
    """Images on which the features should stay close to the pretrained ones."""

    split: Literal["train", "val"] = "train"  # to read
    batch_size: BatchSize = 32  # over all processes


class RetentionConfig(Config):
    """Loss terms against forgetting, in stages that train the backbone."""

    NEEDS = {"generic": "features"}

    # weight of the squared distance from pretrained weights (L2-SP)
    weights: NonNegativeFloat = 0.0
    features: NonNegativeFloat = 0.0  # weight of the mean 1 - cosine to pretrained features
    generic: GenericImagesConfig | None = None  # null: use the training images

    def faults(self) -> Iterator[Fault]:
        if not (self.weights or self.features):
            yield "", "weights and features are both 0; raise one, or set retention to null"


class RunConfig(Config):
    """One training run."""

    COMMON: ClassVar = ("train", "stages")

    name: Name  # of the run folder
    out: Output = "runs"  # the parent of the run folder
    # initial weights: a run or soup with this backbone, without class weights; `retention` refers to the
    # pretrained ones
    start_from: str | None = None
    seed: Seed = 0  # of initial weights, batches and augmentation
    precision: Literal["no", "bf16", "fp16"] = "no"  # of autocast; weights are float32
    log_every: Steps = 20  # a line of metrics.jsonl
    trackers: list[Tracker] = ["tensorboard"]  # logs besides metrics.jsonl; each must be installed
    checkpoint_every: Steps = 500  # a checkpoint to resume from
    keep_checkpoints: PositiveInt = 2  # the newest; a damaged one falls back to the previous
    copy_frozen: bool = False  # write frozen pretrained weights to the run folder too
    gradient_checkpointing: bool = False  # less memory, a third more time
    # the same bits in each run where a GPU's operators allow it; slower, without TensorFloat-32
    deterministic: bool = False
    channels_last: bool = False  # memory format of images and convolutions
    compile: bool = False  # minutes at each stage's start, faster steps
    on_out_of_memory: Literal["stop", "halve"] = "stop"  # halve: double micro-batches and retry
    data: DataConfig
    model: ModelConfig
    task: TaskConfig = ClassificationConfig()
    retention: RetentionConfig | None = None
    stages: list[StageConfig] = Field(min_length=1)

    @property
    def base(self) -> BackboneConfig | None:
        """The backbone whose pretrained weights run files may omit; None: they omit none."""
        return None if self.copy_frozen else self.model.backbone

    def image_size(self, stage: StageConfig) -> tuple[int, int | None]:
        """Return a stage's image size, and the stride of its patches if one is set, in pixels."""
        stride_px = stage.stride_px or self.model.backbone.stride_px
        return stage.size_px or self.model.image.size_px, stride_px

    def recompute_fault(self, stage: StageConfig) -> str | None:
        """Return why statistics of batch normalisation may not move in this stage's backbone, if so."""
        divided = stage.accumulate > 1 or self.on_out_of_memory == "halve"
        if not (self.task.compares_images and divided):
            return None
        why = "the loss compares images, so the backbone sees each micro-batch twice, and never the batch"
        return f"{why}; set accumulate to 1 and on_out_of_memory to stop"

    def faults(self) -> Iterator[Fault]:
        modes: set[str] = set()
        for number, stage in enumerate(self.stages):
            before = self.stages[number - 1] if number else None
            for key, why in (*self._faults_of_stage(stage, before), *self._faults_of_rates(stage)):
                yield f"stages.{number}.{key}", why
            modes |= stage.batch_norm_modes
            if len(modes) > 1:
                yield f"stages.{number}.batch_norm", "a run allows one of train and synced"
        rated = {"backbone", "head", "classes"}
        rated |= {part for stage in self.stages for part in stage.lr.by_part()}
        for part in self.task.parts(self.model):
            if part not in rated:
                new = f"missing in all stages, and {part} has new weights"
                yield f"stages.0.lr.{part}", f"{new}; give their rate, or 0 to freeze them"
        if modes and self.gradient_checkpointing:
            twice = "would count a batch twice in batch_norm"
            yield "gradient_checkpointing", f"{twice}; set it to false, or batch_norm to frozen"
        if self.model.layers and self.compile:
            yield "compile", "torch.compile disables the hooks of model.layers; set it to false"
        yield from self._faults_of_task()
        if self.retention:
            rates, weights = [stage.lr for stage in self.stages], self.retention.weights
            if self.model.backbone.pretrained is None:
                yield "retention", "model.backbone.pretrained is null; set retention to null"
            if not any(lr.trains_features for lr in rates):
                yield "retention", "no stage trains the backbone; set retention to null"
            if weights and not any(lr.trains_backbone for lr in rates):
                none = "no stage trains the backbone's own weights"
                yield "retention.weights", f"{none}; set it to 0 (features holds adapters)"

    def _faults_of_rates(self, stage: StageConfig) -> Iterator[Fault]:
        """Yield faults of learning rates and weight decays, which are given by part of the task."""
        parts = self.task.parts(self.model)
        numbers = {"lr": stage.lr.by_part()}
        if not isinstance(stage.weight_decay, float):
            numbers["weight_decay"] = stage.weight_decay.by_part()
        for key, by_part in numbers.items():
            for part, number in by_part.items():
                if number and part not in parts:  # 0 for an absent part is harmless
                    yield f"{key}.{part}", f"this task has no such part{remedy(part, parts)}"
        for loss in self.task.losses:
            rows = isinstance(loss, ClassWeightsConfig | CustomLossConfig)
            boundaries = isinstance(loss, MarginLossConfig) and loss.learn_boundary
            if (rows or boundaries) and "classes" not in stage.lr.model_fields_set:
                missing = f"missing, and loss {loss.name} can have class weights"
                yield "lr.classes", f"{missing}; give their rate, or 0 to freeze them"

    def _faults_of_stage(self, stage: StageConfig, before: StageConfig | None) -> Iterator[Fault]:
        """Yield keys of a stage that do not apply to the task, or to the stage before."""
        task, losses = self.task, self.task.losses
        softmaxes = {loss.name for loss in losses if isinstance(loss, MarginSoftmaxConfig)}
        used = losses[0].name if len(losses) == 1 else f"task {task.name}"
        if stage.optimizer_state == "carry":
            alike = before and (before.optimizer, self.image_size(before))
            if (stage.optimizer, self.image_size(stage)) != alike or stage.classes == "reset":
                needs = "carry needs the optimizer, image size and classes of a stage before"
                yield "optimizer_state", f"{needs}; set it to reset"
        for key, allowed in {"classes": "carry", "softmax_over": "run"}.items():
            if not softmaxes and (given := getattr(stage, key)) != allowed:
                known = "losses with a margin softmax, such as arcface"
                yield key, f"{given} is for {known}; {used} allows {allowed}"
        if stage.margin is not None and not softmaxes - {"softmax"}:
            yield "margin", f"is for losses with a margin rule, such as arcface, not {used}"
        if stage.classes == "reset" and not stage.lr.of("classes"):
            yield "classes", "reset with lr.classes 0 leaves class weights random; raise lr.classes"
        if stage.batch_norm_modes and (why := self.recompute_fault(stage)):
            yield "batch_norm", f"{why}, or batch_norm to frozen"
        if stage.repeated_views and task.name != "distillation":
            yield "repeated_views", f"is for task distillation, not {task.name}; set it to null"
        generic = self.retention and self.retention.generic
        if stage.repeated_views and (stage.cached_views or generic):
            yield "repeated_views", "excludes cached_views and retention.generic; set it to null"
        if stage.augment.mixup:
            if losses or not isinstance(task, DistillationConfig):
                why = "has no label or caption, so mixup needs teachers and no losses"
                yield "augment.mixup", f"a blend of two images {why}; set it to 0"
            elif any(t.domains for t in task.teachers) or any(c.domains for c in task.criteria):
                why = "may mix two domains, but some teachers or criteria are for some domains"
                yield "augment.mixup", f"a blend {why}; set it to 0"
        terms = task.criteria if isinstance(task, DistillationConfig) else []
        some = [n for n, term in enumerate(terms) if term.loss and term.domains]
        if some and isinstance(stage.sampler, MixedConfig | ShardsConfig):
            loss = f"the loss of task.criteria.{some[0]} is for some domains"
            yield "sampler", f"mixes domains in a batch, but {loss}; use dataset_size or balanced"

    def _faults_of_task(self) -> Iterator[Fault]:
        """Yield faults of the task that depend on the model and on batches."""
        task, model, head = self.task, self.model, self.model.head
        groups, projector = getattr(task, "metaclasses", None), getattr(task, "projector", None)
        if head and head.parts > 1 and groups is None:
            yield "model.head.parts", "needs task.metaclasses; set it, or set parts to 1"
        if head and head.parts > 1 and projector:
            yield "task.projector", "would mix the parts of model.head; drop one of the two"
        if nested := getattr(task, "nested", []):
            if groups or projector:
                yield "task.nested", "excludes task.metaclasses and task.projector; drop it or them"
            if not head or nested != sorted(set(nested)) or nested[-1] >= head.dim:
                wide = f"model.head.dim, {head.dim}" if head else "model.head, which is null"
                yield "task.nested", f"needs rising widths below {wide}; correct it"
        if groups and getattr(task.losses[0], "classifier", "joint") == "separate":
            yield "task.loss.classifier", "metaclasses mix domains; set it to joint"
        if isinstance(task, OnlineConfig) and task.backprop_to == "head" and not head:
            yield "task.backprop_to", "is head, but model.head is null; set it to backbone"
        if task.name == "contrastive":
            added = {key: getattr(model, key) for key in ("adapters", "prompts", "layers")}
            added["backbone.reset"] = model.backbone.reset
            added["backbone.features"] = model.backbone.features != "projected"
            for key in (key for key, value in added.items() if value):
                yield f"model.{key}", "task contrastive trains a plain CLIP; leave it out"
        terms = task.criteria if isinstance(task, DistillationConfig) else []
        for number, term in enumerate(terms):
            if isinstance(snd := term.relation, SndConfig):
                others = min(stage.batch_size for stage in self.stages) - 1 + snd.queue
                for sigma in (snd.sigma, snd.student_sigma):
                    if isinstance(sigma, Perplexity) and sigma.perplexity >= others:
                        wide = f"perplexity {sigma.perplexity:g} must be below {others}"
                        why = f"{wide}, the other images of batch and queue; lower it"
                        yield f"task.criteria.{number}.relation", why


def refuse_untrainable(config: RunConfig) -> None:
    """Raise UserError for a config that train.py cannot train, though others read it."""
    if config.model.head and config.model.head.reduced_dim and not config.start_from:
        raise UserError(
            "model.head.reduced_dim: fitted by compose.py, not in training; remove it, or set start_from to a"
            " reduced model"
        )
    for name in config.trackers:
        if not find_spec(name):
            package = name.replace("_", "-")
            raise UserError(
                f"trackers: {name} is not installed; pip install {package}, or remove it"
            )
