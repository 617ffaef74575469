"""The config of a model: backbone, feature layers, adapters and prompts, preprocessing, head."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat

from guie.config.types import Config, Either, Fault, Names, Pixels, PositiveInt, Width, of_form

# avg, max and gem pool patch positions only; token is a transformer's class token
Pool = Literal["avg", "max", "gem", "token"]
NormSide = Literal["before", "after"]


class LayersConfig(Config):
    """Backbone layers, pooled over positions and concatenated, as features."""

    # names of modules, such as `blocks.8` (timm's ViT), `transformer.resblocks.8` (open_clip), `layer3`
    # (ResNet), `stages.2` (ConvNeXt), `features.42` (VGG16-BN)
    of: Names
    pool: Pool = "avg"  # of patch positions; token: the class token
    power: PositiveFloat = 3.0  # of gem: mean(x ** power) ** (1 / power)
    norm: NormSide = "before"  # after: a transformer's final norm comes before the pooling


Keep = Annotated[float, Field(gt=0, le=1)]
Blocks = Literal["all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class GateConfig(Config):
    """Random gate of a branch in training; evaluation uses its expected value."""

    keep: Keep = 1.0  # probability that a branch is on in training
    # per branch and batch (PUMA's eq. 5) or image (its code)
    draw: Literal["batch", "image"] = "batch"
    rescale: bool = False  # divide kept branches by keep, as dropout and PUMA's code do


class StochasticConfig(GateConfig):
    """Random branch parallel to attention and MLP: up(ReLU(down(norm(z)))) (PUMA, 4.2)."""

    kind: Literal["stochastic"]
    dim: Width = 128  # of the bottleneck
    keep: Keep = 0.5  # probability that a branch is on in training
    scale: PositiveFloat = 1.0  # of the branch; PUMA's eq. 5 has none, its code .1
    # variance of the down-projection: fan_in 1 / (3 D), fan_out 1 / dim and equal in both branches of a block
    # (PUMA's code)
    init: Literal["fan_in", "fan_out"] = "fan_in"
    blocks: Blocks = "all"  # blocks that have one


class AdaptFormerConfig(Config):
    """Branch parallel to the MLP, with biases (Chen et al., NeurIPS 2022)."""

    kind: Literal["adaptformer"]
    dim: Width = 64  # of the bottleneck
    scale: PositiveFloat = 0.1  # of the branch
    blocks: Blocks = "all"  # blocks that have one


class LoraConfig(GateConfig):
    """Low-rank updates of weight matrices (Hu et al., ICLR 2022); below keep 1: stochastic LoRA."""

    kind: Literal["lora"]
    rank: Width = 8  # of an update
    alpha: PositiveFloat | None = None  # scales the update by alpha / rank; null: rank
    # weight matrices of a block
    targets: list[Literal["q", "k", "v", "out", "mlp"]] = Field(["q", "v"], min_length=1)
    blocks: Blocks = "all"  # blocks that have one


class TunedConfig(Config):
    """Train vectors of the backbone itself."""

    kind: Literal["tuned"]
    # biases: BitFit (Ben Zaken et al., ACL 2022); norms: all vectors of norm layers
    targets: Literal["biases", "norms", "both"] = "biases"


AdapterConfig = Annotated[
    StochasticConfig | AdaptFormerConfig | LoraConfig | TunedConfig, Field(discriminator="kind")
]


class PoolConfig(Config):
    """One prompt per image: a sum over a pool, weighted by similarity (PUMA, 4.3)."""

    kind: Literal["pool"]
    size: PositiveInt = 20  # prompts
    length: PositiveInt = 8  # tokens per prompt
    # sum: average plus maximum of patches (eq. 6); mean: half of it, no gradient (the code)
    query: Literal["sum", "mean"] = "sum"
    # plain: eq. 8; softmax: over features, before the product (the code)
    attention: Literal["plain", "softmax"] = "plain"
    # orthogonal prompts, or equal ones of orthogonal tokens (the code)
    init: Literal["orthogonal", "equal"] = "orthogonal"
    orthogonality: Annotated[float, Field(ge=0)] = 0.0  # weight of the penalty; the code: 1e-6


class VptConfig(Config):
    """One prompt for all images, before the first block or each (Jia et al., ECCV 2022)."""

    NEEDS = {"position": ("kind", "shallow")}

    kind: Literal["shallow", "deep"]
    length: PositiveInt = 8  # tokens per prompt
    # of shallow prompts. class: the class token's position embedding (PUMA's code)
    position: Literal["none", "class"] = "none"


PromptsConfig = Annotated[PoolConfig | VptConfig, Field(discriminator="kind")]


class WithAdapters(Config):
    """Optional adapters and prompts of a model."""

    # one or more: {kind: stochastic}, or [{kind: stochastic}, {kind: lora}]
    adapters: Annotated[
        list[AdapterConfig],
        BeforeValidator(lambda value: [value] if isinstance(value, dict) else value),
    ] = []
    prompts: PromptsConfig | None = None

    def faults(self) -> Iterator[Fault]:
        kinds = [adapter.kind for adapter in self.adapters]
        for number, kind in enumerate(kinds):
            if kind in kinds[:number]:
                yield f"adapters.{number}.kind", f"{kind} is given twice; give each kind once"


Fraction = Annotated[float, Field(ge=0, lt=1)]
Fit = Literal["squash", "pad", "crop"]
PadColor = Literal["white", "black"]
Resize = Literal["bicubic", "bilinear"]

# Of the backbone's BatchNorm layers: one choice, or one by the name of a module
BatchNormMode = Literal["frozen", "train", "synced"]
BatchNorm = Either[BatchNormMode, dict[str, BatchNormMode]]

# Arguments of the libraries that would load weights without `pretrained` and its checksum.
WEIGHT_ARGUMENTS = re.compile("pretrained|checkpoint_path|load_weights|weights_only")

# Libraries of backbones; `guie.models.backbones.register` adds others.
LIBRARIES = ["open_clip", "timm"]


def _is_registered(library: str) -> str:
    if library not in LIBRARIES:
        raise ValueError(f"Input should be {' or '.join(map(repr, LIBRARIES))}")
    return library


Sha256 = Annotated[str, of_form("[0-9a-fA-F]{8,64}", "64 hex digits, or at least the first 8")]
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")  # of weights files


class TaggedFile(Config):
    """A tag's weights in a file of your own, without a hub; mean and std are the tag's."""

    tag: str  # of the model in its library
    file: str  # path of the weights


class BackboneConfig(Config):
    """A pretrained image backbone."""

    NEEDS = {"sha256": "pretrained", "revision": "pretrained"}

    library: Annotated[str, AfterValidator(_is_registered)]  # open_clip or timm
    name: str  # in its library, without the tag
    # hub tag, {tag: ..., file: ...}, or a file (without mean and std); null: random
    pretrained: Either[str, TaggedFile] | None = None
    # quoted; of the weights file, or its first digits
    sha256: Sha256 | None = None
    revision: str | None = None  # commit or branch of the tag; null: newest
    # open_clip only. projected: CLIP's shared space; pooled: before projection
    features: Literal["projected", "pooled"] = "projected"
    stride_px: Pixels | None = None  # of patches, which overlap below their size
    reset: list[str] = []  # modules to reinitialise (Vo and Hays' NetB: the last layer)
    kwargs: dict[str, Any] = {}  # for the library's create_model

    @property
    def tag(self) -> str | None:
        """The library's tag, which brings mean and std."""
        if isinstance(self.pretrained, TaggedFile):
            return self.pretrained.tag
        return None if self.file else self.pretrained

    @property
    def file(self) -> str | None:
        """The weights file, where the config names one: by a path, or a suffix."""
        if isinstance(self.pretrained, TaggedFile):
            return self.pretrained.file
        named = self.pretrained or ""
        return named if "/" in named or named.endswith(SUFFIXES) else None

    def with_file(self, file: str) -> BackboneConfig:
        """Return this config with its weights in another file."""
        moved = TaggedFile(tag=self.tag, file=file) if self.tag else file
        return self.model_copy(update={"pretrained": moved})

    def faults(self) -> Iterator[Fault]:
        if ":" in self.name:
            yield "name", f"{self.name!r}: give the name alone, and pretrained: <tag>"
        for key, value in self.kwargs.items():
            if WEIGHT_ARGUMENTS.match(key):
                yield "kwargs", f"{key}: not allowed; give weights by pretrained"
            if value in ("yes", "no", "on", "off"):  # true and false of YAML 1.1
                yield "kwargs", f"{key}: {value} is text; write true or false"


class ImageConfig(Config):
    """The preprocessing of training, validation and submission."""

    size_px: Pixels  # side of the square that the backbone sees
    fit: Fit = "squash"  # how an image becomes a square
    pad_color: PadColor = "white"  # with fit: pad; 5th place: black
    mean: list[float] | None = Field(None, min_length=3, max_length=3)  # null: the backbone's
    # null: the backbone's
    std: list[PositiveFloat] | None = Field(None, min_length=3, max_length=3)


class BranchesConfig(Config):
    """The mean of several dropout branches; one Linear in evaluation."""

    # shared: dropouts before one Linear (4th place); separate: Linears, each before a dropout (3rd)
    linear: Literal["shared", "separate"]
    dropouts: list[Fraction] = Field(min_length=2)  # one branch each


class HeadConfig(Config):
    """norm -> dropout -> Linear -> L2; `hidden` adds layers before the Linear."""

    # A scale of the aspect ratio's own needs batch normalisation
    NEEDS = dict.fromkeys(("image_shape", "norm_eps"), ("norm", "bn", "bn_plain")) | {
        "activation": "hidden"
    }

    norm: Literal["l2", "bn", "bn_plain", "none"] = "l2"  # bn_plain: without weight and bias
    norm_eps: PositiveFloat = 1e-5  # of bn and bn_plain; 5th place: 1e-6
    dropout: Fraction = 0.0  # before the last Linear
    dim: Width = 64  # of the embedding; the challenge allows 64
    bias: bool = True  # of the last Linear
    # of the last Linear, by deviation at F features. torch: (3 F) ** -0.5; with bias 0, lecun_normal: F **
    # -0.5 (UnED); xavier_uniform: sqrt(2 / (F + dim)) (3rd place)
    init: Literal["torch", "lecun_normal", "xavier_uniform"] = "torch"
    # widths of Linear + activation layers before the last Linear; PUMA's MLP-3: [2048, 2048] with gelu
    hidden: list[Width] = []
    activation: Literal["relu", "gelu"] = "relu"  # after each hidden layer
    branches: BranchesConfig | None = None
    # append H / W, H / 224, W / 224 of the image to the features (5th place)
    image_shape: bool = False
    # of the embedding, each of unit length: members of an ensemble (DREML)
    parts: PositiveInt = 1
    # output of a fitted linear map; set by compose.py, or with start_from
    reduced_dim: Width | None = None

    def faults(self) -> Iterator[Fault]:
        if self.dim % self.parts:
            yield "parts", f"{self.parts} does not divide dim {self.dim}"
        if self.reduced_dim and self.reduced_dim > self.dim:
            yield "reduced_dim", f"{self.reduced_dim} is above dim {self.dim}"


class ModelConfig(WithAdapters):
    """Backbone and head; without a head, the backbone's output is the embedding."""

    backbone: BackboneConfig
    layers: LayersConfig | None = None  # null: the backbone's output
    image: ImageConfig
    head: HeadConfig | None = HeadConfig()

    def parts(self) -> list[str]:
        """Return the parts with their own learning rates: see `Task.parts`."""
        added = {"adapters": self.adapters, "prompts": self.prompts, "head": self.head}
        return ["backbone", *(part for part, config in added.items() if config)]
