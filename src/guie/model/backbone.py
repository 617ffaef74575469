"""Pretrained image towers of open_clip and timm behind one surface.

Shapes: B images, C channels, H height, W width, F backbone features.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import open_clip
import timm
import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from guie.config.model import BackboneConfig
from guie.errors import UserError
from guie.model.weights import Weights, find_weights, is_file

# Our tiny CLIP is described in open_clip's own format and found by name like any other.
open_clip.add_model_config(Path(__file__).with_name("open_clip_configs"))


class Backbone(nn.Module):
    """An image tower without its classifier.

    Attributes: `dim` (F); `size_px`, the side of its images; `mean` and `std`, what the tower was
    trained with, on a 0..1 scale.

    Args:
        native: the library's description of the pretraining: `size`, `mean`, `std`.
        size_px: the side wanted; None keeps the pretraining's.
    """

    def __init__(self, tower: nn.Module, native: dict[str, Any], size_px: int | None):
        super().__init__()
        self.tower = tower
        self.mean, self.std = list(native["mean"]), list(native["std"])
        size = native["size"]
        self.size_px = size if isinstance(size, int) else size[-1]
        if size_px:
            self.set_image_size(size_px)
        self.dim = _probe_dim(tower, self.size_px)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """(B, 3, S, S) normalised images -> (B, F) features."""
        return self.tower(images_BCHW)

    def set_image_size(self, size_px: int) -> None:
        """Take square images of this size: position embeddings are interpolated, weights kept."""
        if hasattr(self.tower, "set_input_size"):  # timm, and timm towers inside open_clip
            _set_timm_size(self.tower, size_px)
        elif isinstance(self.tower, open_clip.transformer.VisionTransformer):
            _set_open_clip_size(self.tower, size_px)
        self.size_px = size_px

    def checkpoint_gradients(self) -> None:
        """Keep a block's input alone and compute the block again in the backward pass.

        Raises UserError for a tower that cannot.
        """
        try:
            self.tower.set_grad_checkpointing(True)
        except (AttributeError, AssertionError):
            raise UserError(
                f"gradient_checkpointing: {type(self.tower).__name__} has none; set it to false"
            ) from None

    def train(self, mode: bool = True) -> Backbone:
        """Train mode, but batch statistics stay those of the pretraining.

        One-domain batches would pull BatchNorm to the domain of the step.
        """
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self


def build_backbone(
    config: BackboneConfig, size_px: int | None = None, weights: bool = True
) -> Backbone:
    """Create the tower with its pretrained weights (`weights=False`: random, to be loaded over).

    Without `size_px` it takes images of the size it was pretrained with.

    Raises UserError for an unknown name, tag or file.
    """
    with _told(config):
        if config.library == "timm":
            return _build_timm(config, weights, size_px)
        return backbone_of_clip(create_clip(config, weights), config, size_px)


def create_clip(config: BackboneConfig, weights: bool = True) -> nn.Module:
    """A whole open_clip model, image and text tower, in fp32. Raises UserError."""
    found = find_weights(config) if weights else None
    # open_clip warns of random weights, which are meant where none are given.
    logging.disable(logging.NOTSET if found else logging.WARNING)
    try:
        with _told(config), _read_from(config, found):
            return open_clip.create_model(
                config.name,
                pretrained=config.pretrained if found else None,
                pretrained_image=False,
                pretrained_text=False,
                weights_only=True,
                **config.kwargs,
            )
    finally:
        logging.disable(logging.NOTSET)


def backbone_of_clip(clip: nn.Module, config: BackboneConfig, size_px: int | None) -> Backbone:
    """The image tower of an open_clip model; the parameters are shared, not copied."""
    if config.features == "pooled":
        _drop_projection(clip.visual, config.name)
    return Backbone(clip.visual, open_clip.get_model_preprocess_cfg(clip), size_px)


def _build_timm(config: BackboneConfig, weights: bool, size_px: int | None) -> Backbone:
    found = find_weights(config) if weights else None
    tagged = found and not is_file(config.pretrained)
    tower = timm.create_model(
        f"{config.name}.{config.pretrained}" if tagged else config.name,
        pretrained=found is not None,
        # custom_load: of the authors' .npz, which the hub's file is not
        pretrained_cfg_overlay=found and {"file": str(found.file), "custom_load": False},
        num_classes=0,
        **config.kwargs,
    )
    # Weights from a bare file carry no statistics: the default tag's are the best guess, and the
    # config may state others.
    cfg = tower.pretrained_cfg
    native = {"size": cfg["input_size"], "mean": cfg["mean"], "std": cfg["std"]}
    return Backbone(tower, native, size_px)


@contextmanager
def _read_from(config: BackboneConfig, found: Weights | None) -> Iterator[None]:
    """Let open_clip read a tag's weights from the file that was checked.

    By its tag and not as a file, for the tag knows the statistics and the activation too.
    """
    known = open_clip.get_pretrained_cfg(config.name, config.pretrained) if found else None
    if not known:
        yield
        return
    known["file"] = str(found.file)  # which open_clip takes before the tag's hub and URL
    try:
        yield
    finally:
        del known["file"]


@contextmanager
def _told(config: BackboneConfig) -> Iterator[None]:
    """The libraries raise many kinds for a bad name, argument or file: one line for each."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if re.search("weights.only", str(error), re.IGNORECASE):
            reason = (
                "the file holds Python objects besides tensors, which could run code; convert it"
                " to .safetensors where you trust it"
            )
        raise UserError(
            f"model.backbone: {config.library} cannot build {config.name!r}"
            f" with pretrained {config.pretrained!r} and {config.kwargs}: {reason}"
        ) from error


def _drop_projection(tower: nn.Module, name: str) -> None:
    """Leave out CLIP's last projection, as the 2nd place of the challenge did."""
    if getattr(tower, "proj", None) is not None:
        tower.proj = None
    elif hasattr(tower, "trunk"):
        tower.head = nn.Identity()
    else:
        raise UserError(f"model.backbone.features: {name} has no projection to drop; use projected")


def _probe_dim(tower: nn.Module, size_px: int) -> int:
    training = tower.training
    with torch.no_grad():
        dim = tower.eval()(torch.zeros(1, 3, size_px, size_px)).shape[-1]
    tower.train(training)
    return dim


def _set_timm_size(tower: nn.Module, size_px: int) -> None:
    tower.set_input_size((size_px, size_px))


def _set_open_clip_size(tower: nn.Module, size_px: int) -> None:
    patch_px = tower.patch_size[0]
    if size_px % patch_px:
        raise UserError(f"image size {size_px} px is no multiple of the patch size {patch_px} px")
    grid = (size_px // patch_px, size_px // patch_px)
    old = tower.positional_embedding
    side = math.isqrt(old.shape[0] - 1)
    resampled = resample_abs_pos_embed(old.detach()[None], list(grid), [side, side])[0]
    tower.positional_embedding = nn.Parameter(resampled, requires_grad=old.requires_grad)
    tower.grid_size, tower.image_size = grid, (size_px, size_px)
