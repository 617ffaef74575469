"""The config of a model: backbone, preprocessing, head."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from guie.config.adapters import WithAdapters
from guie.config.base import Config, Pixels, PositiveInt, Width
from guie.config.faults import FaultAt
from guie.config.layers import LayersConfig

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
            raise FaultAt("sha256", f"{self.sha256!r}: 64 hex digits, or at least the first 8")
        if (self.sha256 or self.revision) and not self.pretrained:
            raise ValueError("sha256 and revision are of pretrained weights; pretrained is null")
        if ":" in self.name:
            raise FaultAt("name", f"{self.name!r}: write the library's name, and pretrained: <tag>")
        bypass = sorted(self.kwargs.keys() & WEIGHT_ARGUMENTS)
        if bypass:
            raise FaultAt("kwargs", f"{', '.join(bypass)}: weights are given by pretrained alone")
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
            raise FaultAt(
                "image_shape",
                "needs norm bn or bn_plain, for the features' scale is not its own;"
                f" norm is {self.norm}",
            )
        if self.norm_eps != BATCH_NORM_EPS and self.norm not in ("bn", "bn_plain"):
            raise FaultAt("norm_eps", f"is of norm bn and bn_plain; norm is {self.norm}")
        if self.dim % self.parts:
            raise FaultAt("parts", f"{self.parts} parts cannot share dim {self.dim} evenly")
        if self.reduced_dim and self.reduced_dim > self.dim:
            raise FaultAt("reduced_dim", f"{self.reduced_dim}: above dim {self.dim}")
        return self


class ModelConfig(WithAdapters):
    """Backbone and head; without a head the embedding is the backbone's, at native dimension."""

    backbone: BackboneConfig
    layers: LayersConfig | None = None  # null: the tower's own output
    image: ImageConfig
    head: HeadConfig | None = HeadConfig()
