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
    """Named backbone layers, pooled over positions and concatenated, instead of the backbone's output."""

    # Names of modules: `blocks.8` of timm's ViT, `transformer.resblocks.8` of open_clip's, `layer3` of a
    # ResNet, `stages.2` of a ConvNeXt, `features.42` of VGG16-BN
    of: Names
    pool: Pool = "avg"  # of patch positions; token: a transformer's class token
    power: PositiveFloat = 3.0  # of gem: mean(x ** power) ** (1 / power)
    norm: NormSide = "before"  # after: a vision transformer's final norm comes before the pooling


Keep = Annotated[float, Field(gt=0, le=1)]
Blocks = Literal["all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class GateConfig(Config):
    """Random gate of a branch in training; evaluation uses its expected value."""

    keep: Keep = 1.0  # probability p; 1: static
    # One draw per branch and batch (PUMA's eq. 5), or per branch and image (its code)
    draw: Literal["batch", "image"] = "batch"
    # Divide kept branches by p, like dropout and PUMA's code, so that the expected gate is 1
    rescale: bool = False


class StochasticConfig(GateConfig):
    """Random branch parallel to attention and MLP of each block: up(ReLU(down(norm(z)))) (PUMA, 4.2)."""

    kind: Literal["stochastic"]
    dim: Width = 128  # r, the bottleneck
    keep: Keep = 0.5  # probability p that a branch is on in training; 1: always
    scale: PositiveFloat = 1.0  # of the branch; eq. 5 has none, the code .1
    # Variance of the initial down-projection: fan_in 1 / (3 D) at width D, fan_out 1 / r. fan_out, as in
    # PUMA's code, also starts both branches of a block from the same values
    init: Literal["fan_in", "fan_out"] = "fan_in"
    blocks: Blocks = "all"  # numbers of the backbone blocks that have one


class AdaptFormerConfig(Config):
    """Branch parallel to the MLP of each block, with biases and fixed scale (Chen et al., NeurIPS 2022)."""

    kind: Literal["adaptformer"]
    dim: Width = 64  # the bottleneck
    scale: PositiveFloat = 0.1  # of the branch
    blocks: Blocks = "all"  # numbers of the backbone blocks that have one


class LoraConfig(GateConfig):
    """Low-rank updates of weight matrices (Hu et al., ICLR 2022); keep below 1: stochastic LoRA."""

    kind: Literal["lora"]
    rank: Width = 8  # of an update
    alpha: PositiveFloat | None = None  # scales the update by alpha / rank; null: rank
    # Weight matrices of a block
    targets: list[Literal["q", "k", "v", "out", "mlp"]] = Field(["q", "v"], min_length=1)
    blocks: Blocks = "all"  # numbers of the backbone blocks that have it


class TunedConfig(Config):
    """Train vectors of the backbone itself."""

    kind: Literal["tuned"]
    # biases: BitFit (Ben Zaken et al., ACL 2022); norms: weights and biases of norm layers
    targets: Literal["biases", "norms", "both"] = "biases"


AdapterConfig = Annotated[
    StochasticConfig | AdaptFormerConfig | LoraConfig | TunedConfig, Field(discriminator="kind")
]


class PoolConfig(Config):
    """One prompt per image: a sum over a pool, weighted by similarity of key and query (PUMA, 4.3)."""

    kind: Literal["pool"]
    size: PositiveInt = 20  # M
    length: PositiveInt = 8  # N_p, tokens per prompt
    # sum: average plus maximum of the patch embeddings (eq. 6); mean: half, without gradient (the code)
    query: Literal["sum", "mean"] = "sum"
    # softmax: over the features, before the product with the query (the code). plain: eq. 8
    attention: Literal["plain", "softmax"] = "plain"
    # Initial prompts: orthogonal to each other, or copies of one of orthogonal unit tokens (the code)
    init: Literal["orthogonal", "equal"] = "orthogonal"
    orthogonality: Annotated[float, Field(ge=0)] = 0.0  # weight of the penalty; 1e-6 in the code


class VptConfig(Config):
    """One prompt for all images, before the first block or before each (Jia et al., ECCV 2022)."""

    NEEDS = {"position": ("kind", "shallow")}

    kind: Literal["shallow", "deep"]
    length: PositiveInt = 8  # tokens per prompt
    # Position embedding of shallow prompts. class: the class token's, as in PUMA's code
    position: Literal["none", "class"] = "none"


PromptsConfig = Annotated[PoolConfig | VptConfig, Field(discriminator="kind")]


class WithAdapters(Config):
    """Optional adapters and prompts of a model."""

    # One or more: {kind: stochastic}, or [{kind: stochastic}, {kind: lora}]
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

BATCH_NORM_EPS = 1e-5  # torch's own

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
    """A tag's weights in a file of your own: mean, std and the rest are the tag's; no hub is contacted."""

    tag: str  # of the model in its library
    file: str  # path of the weights


class BackboneConfig(Config):
    """A pretrained image backbone, by its name and weights in its library."""

    NEEDS = {"sha256": "pretrained", "revision": "pretrained"}

    library: Annotated[str, AfterValidator(_is_registered)]  # open_clip or timm
    name: str  # of the model in its library, without the tag
    # Hub tag, or its weights in a file: {tag: ..., file: ...}. A path alone has no mean and std of its own;
    # null: random
    pretrained: Either[str, TaggedFile] | None = None
    sha256: Sha256 | None = None  # quoted; of the weights file, or a prefix; null: unchecked
    revision: str | None = None  # commit or branch of the tag's repository; null: newest
    # open_clip only. projected: CLIP's shared space; pooled: the backbone's output before projection
    features: Literal["projected", "pooled"] = "projected"
    # Patch stride; patches overlap below the patch size. null: the patch size
    stride_px: Pixels | None = None
    # Names of modules to reinitialise, as without `pretrained` (NetB of Vo and Hays: the last layer)
    reset: list[str] = []
    kwargs: dict[str, Any] = {}  # passed to the library's create_model

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
    """The preprocessing that training, validation and the submission share."""

    size_px: Pixels  # side of the square that the backbone sees
    fit: Fit = "squash"  # how an image becomes a square
    pad_color: PadColor = "white"  # around an image with fit: pad; 5th place: black
    mean: list[float] | None = Field(None, min_length=3, max_length=3)  # null: the backbone's
    # null: the backbone's
    std: list[PositiveFloat] | None = Field(None, min_length=3, max_length=3)


class BranchesConfig(Config):
    """The mean of several dropout branches; in evaluation the head is a single Linear."""

    # shared: dropout i -> one Linear (the challenge's 4th place). separate: Linear i -> dropout i (3rd place)
    linear: Literal["shared", "separate"]
    dropouts: list[Fraction] = Field(min_length=2)  # one branch per value


class HeadConfig(Config):
    """norm -> dropout -> Linear -> L2; `hidden` adds layers before the Linear."""

    # A scale of the aspect ratio's own needs batch normalisation
    NEEDS = dict.fromkeys(("image_shape", "norm_eps"), ("norm", "bn", "bn_plain")) | {
        "activation": "hidden"
    }

    norm: Literal["l2", "bn", "bn_plain", "none"] = "l2"  # bn_plain: without weight and bias
    # eps of bn and bn_plain, for features of zero variance; 5th place: 1e-6 (train_arcface.py, cell 20)
    norm_eps: PositiveFloat = BATCH_NORM_EPS
    dropout: Fraction = 0.0  # before the last Linear
    dim: Width = 64  # of the embedding; the challenge allows 64
    bias: bool = True  # of the last Linear
    # Initial last Linear. torch: PyTorch's, of standard deviation (3 F) ** -0.5 at F features. lecun_normal:
    # Flax's (UnED), F ** -0.5. xavier_uniform: Keras' (3rd place), sqrt(2 / (F + dim)); these two have bias 0
    init: Literal["torch", "lecun_normal", "xavier_uniform"] = "torch"
    # Widths of Linear + activation layers between dropout and the last Linear. [2048, 2048] with gelu
    # is the "MLP-3 Emb." of PUMA's table 2 (its models/model.py:79)
    hidden: list[Width] = []
    activation: Literal["relu", "gelu"] = "relu"  # after each hidden layer
    branches: BranchesConfig | None = None
    # Append H / W, H / 224 and W / 224 of the original image to the features (5th place)
    image_shape: bool = False
    # Equal parts of the embedding, each of unit length: ensemble members on one backbone (DREML)
    parts: PositiveInt = 1
    # Output dimension of a fitted linear map after the embedding; set by compose.py, or with start_from
    reduced_dim: Width | None = None

    def faults(self) -> Iterator[Fault]:
        if self.dim % self.parts:
            yield "parts", f"{self.parts} does not divide dim {self.dim}"
        if self.reduced_dim and self.reduced_dim > self.dim:
            yield "reduced_dim", f"{self.reduced_dim} is above dim {self.dim}"


class ModelConfig(WithAdapters):
    """Backbone and head; without a head the embedding is the backbone's output at native dimension."""

    backbone: BackboneConfig
    layers: LayersConfig | None = None  # null: the backbone's output
    image: ImageConfig
    head: HeadConfig | None = HeadConfig()

    def parts(self) -> list[str]:
        """Return the parts with their own learning rates: see `Task.parts`."""
        added = {"adapters": self.adapters, "prompts": self.prompts, "head": self.head}
        return ["backbone", *(part for part, config in added.items() if config)]
