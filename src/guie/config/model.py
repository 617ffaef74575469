"""The config of a model: backbone, feature layers, adapters and prompts, preprocessing, head."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from guie.config.base import Config, ConfigError, Pixels, PositiveInt, Width


class LayersConfig(Config):
    """Layers by their names in the tower, pooled over places, side by side; in place of its output.

    `blocks.8` of timm's ViT, `transformer.resblocks.8` of open_clip's, `layer3` of a ResNet, `stages.2`
    of a ConvNeXt, `features.42` of VGG16-BN.
    """

    of: Annotated[list[str], Field(min_length=1)]
    # avg, max and gem are over places alone; token is the class token, of a transformer that has one
    pool: Literal["avg", "max", "gem", "token"] = "avg"
    power: PositiveFloat = 3.0  # of gem: the mean of x ** power, to the power of 1 / power


Keep = Annotated[float, Field(gt=0, le=1)]
Blocks = Literal["all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Place = Literal["q", "k", "v", "out", "mlp"]


class GateConfig(Config):
    """How often a branch is on while training; when scored it has its expected value."""

    keep: Keep = 1.0  # probability p; 1: static
    # One draw for a branch and batch (PUMA's eq. 5), or one for a branch and image (its code)
    draw: Literal["batch", "image"] = "batch"
    # Divide what is kept by p, as dropout does and PUMA's code: the expected value is then the whole
    rescale: bool = False


class StochasticConfig(GateConfig):
    """Beside attention and MLP of each block: up(ReLU(down(norm(z)))), on by chance (PUMA, 4.2)."""

    kind: Literal["stochastic"]
    dim: Width = 128  # r, of the bottleneck
    keep: Keep = 0.5
    scale: PositiveFloat = 1.0  # of what is added; eq. 5 has none, the code .1
    blocks: Blocks = "all"


class AdaptFormerConfig(Config):
    """Beside the MLP of each block, with biases and a fixed scale (Chen et al., NeurIPS 2022)."""

    kind: Literal["adaptformer"]
    dim: Width = 64
    scale: PositiveFloat = 0.1
    blocks: Blocks = "all"


class LoraConfig(GateConfig):
    """Low-rank changes of weight matrices (Hu et al., ICLR 2022); keep below 1: stochastic LoRA."""

    kind: Literal["lora"]
    rank: Width = 8
    alpha: PositiveFloat | None = None  # the change is times alpha / rank; null: rank
    of: Annotated[list[Place], Field(min_length=1)] = ["q", "v"]
    blocks: Blocks = "all"


class TunedConfig(Config):
    """The backbone's own vectors, trained where they are.

    biases: BitFit (Ben Zaken et al., ACL 2022). norms: weights and biases of the norms.
    """

    kind: Literal["tuned"]
    of: Literal["biases", "norms", "both"] = "biases"


AdapterConfig = Annotated[
    StochasticConfig | AdaptFormerConfig | LoraConfig | TunedConfig, Field(discriminator="kind")
]


class PoolConfig(Config):
    """One prompt an image, a sum of a pool's by how alike key and query are (PUMA, 4.3)."""

    kind: Literal["pool"]
    size: PositiveInt = 20  # M
    length: PositiveInt = 8  # N_p, tokens of a prompt
    # sum: average and largest of the patch embeddings (eq. 6). mean: half of it, without a gradient
    # (the code)
    query: Literal["sum", "mean"] = "sum"
    # softmax: over the features, before the query is multiplied by them (the code); plain: eq. 8
    attention: Literal["plain", "softmax"] = "plain"
    orthogonality: Annotated[float, Field(ge=0)] = 0.0  # weight of the penalty; 1e-6 in the code


class VptConfig(Config):
    """The same prompt for every image, ahead of the first block, or of each (Jia et al., ECCV 2022)."""

    kind: Literal["shallow", "deep"]
    length: PositiveInt = 8


PromptsConfig = Annotated[PoolConfig | VptConfig, Field(discriminator="kind")]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


class WithAdapters(Config):
    """What a model may have besides backbone and head."""

    # One or more: {kind: stochastic}, or [{kind: stochastic}, {kind: lora}]
    adapters: Annotated[list[AdapterConfig], BeforeValidator(_listed)] = []
    prompts: PromptsConfig | None = None

    @model_validator(mode="after")
    def _kinds_differ(self) -> WithAdapters:
        kinds = [adapter.kind for adapter in self.adapters]
        again = next((n for n, kind in enumerate(kinds) if kind in kinds[:n]), None)
        if again is not None:
            raise ConfigError(
                f"adapters.{again}.kind", f"{kinds[again]} is there already; each once"
            )
        return self

    def parts(self) -> list[str]:
        """Parts of a task that come with it."""
        return [*(["adapters"] if self.adapters else []), *(["prompts"] if self.prompts else [])]


Fraction = Annotated[float, Field(ge=0, lt=1)]
Fit = Literal["squash", "pad", "crop"]

BATCH_NORM_EPS = 1e-5  # torch's own

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
    # Between the corners of patches; less than the patch size: they overlap. null: the patch size
    stride_px: Pixels | None = None
    # Modules by name that begin anew, as without `pretrained` (NetB of Vo and Hays: its last layer)
    reset: list[str] = []
    kwargs: dict[str, Any] = {}  # passed to the library's create_model

    @model_validator(mode="after")
    def _weights_are_checked(self) -> BackboneConfig:
        if self.sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{8,64}", self.sha256):
            raise ConfigError("sha256", f"{self.sha256!r}: 64 hex digits, or at least the first 8")
        if (self.sha256 or self.revision) and not self.pretrained:
            raise ValueError("sha256 and revision are of pretrained weights; pretrained is null")
        if ":" in self.name:
            raise ConfigError(
                "name", f"{self.name!r}: write the library's name, and pretrained: <tag>"
            )
        bypass = sorted(self.kwargs.keys() & WEIGHT_ARGUMENTS)
        if bypass:
            raise ConfigError(
                "kwargs", f"{', '.join(bypass)}: weights are given by pretrained alone"
            )
        return self


class ImageConfig(Config):
    """The preprocessing that training, validation and the submission share."""

    size_px: Pixels
    fit: Fit = "squash"
    mean: list[float] | None = Field(None, min_length=3, max_length=3)  # null: the backbone's
    std: list[PositiveFloat] | None = Field(None, min_length=3, max_length=3)


class BranchesConfig(Config):
    """Several dropouts at once, averaged; when scored, the head is one Linear all the same.

    shared: dropout i -> the one Linear (the challenge's 4th place). separate: Linear i -> dropout i
    (3rd place).
    """

    linear: Literal["shared", "separate"]
    dropouts: list[Fraction] = Field(min_length=2)


class HeadConfig(Config):
    """norm -> dropout -> Linear -> L2; with `hidden`, layers ahead of the Linear."""

    norm: Literal["l2", "bn", "bn_plain", "none"] = "l2"  # bn_plain: without weight and bias
    # Of bn and bn_plain, what keeps a feature that does not vary from a division by 0. The 5th place
    # has 1e-6 (train_arcface.py, cell 20)
    norm_eps: PositiveFloat = BATCH_NORM_EPS
    dropout: Fraction = 0.0
    dim: Width = 64
    bias: bool = True
    # Widths of layers between dropout and the last, each a Linear and a ReLU: an MLP of [2048, 2048]
    # is the "MLP-3 Emb." of PUMA's table 2, by its 5.3 M parameters on ViT-S
    hidden: list[Width] = []
    branches: BranchesConfig | None = None
    # H / W, H / 224 and W / 224 of the original image beside the features (5th place)
    image_shape: bool = False
    # Parts of the embedding, each of unit length before they stand side by side: the members of an
    # ensemble on one backbone (DREML)
    parts: PositiveInt = 1
    # A fitted linear map of the embedding to so many dimensions follows; compose.py sets it
    reduced_dim: Width | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> HeadConfig:
        if self.image_shape and self.norm not in ("bn", "bn_plain"):
            raise ConfigError(
                "image_shape",
                "needs norm bn or bn_plain, for the features' scale is not its own;"
                f" norm is {self.norm}",
            )
        if self.norm_eps != BATCH_NORM_EPS and self.norm not in ("bn", "bn_plain"):
            raise ConfigError("norm_eps", f"is of norm bn and bn_plain; norm is {self.norm}")
        if self.dim % self.parts:
            raise ConfigError("parts", f"{self.parts} parts cannot share dim {self.dim} evenly")
        if self.reduced_dim and self.reduced_dim > self.dim:
            raise ConfigError("reduced_dim", f"{self.reduced_dim}: above dim {self.dim}")
        return self


class ModelConfig(WithAdapters):
    """Backbone and head; without a head the embedding is the backbone's, at native dimension."""

    backbone: BackboneConfig
    layers: LayersConfig | None = None  # null: the tower's own output
    image: ImageConfig
    head: HeadConfig | None = HeadConfig()
