"""Pretrained image backbones of open_clip and timm with one interface.

Shapes: B images, C channels, H height, W width, F backbone features.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import open_clip
import timm
import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.model import BackboneConfig, LayersConfig
from guie.models.layers import Layers
from guie.models.patches import Tower, patch_size, refuse_misfit, set_grid
from guie.models.pretrained import Weights, find_weights, is_file

# A whole open_clip model with image and text encoder; its class varies and has no types.
Clip = Any

# Our tiny CLIP has a config in open_clip's own format, so open_clip finds it by name.
open_clip.add_model_config(Path(__file__).with_name("open_clip_configs"))


class Backbone(nn.Module):
    """An image encoder without its classifier.

    Attributes: `dim` (F); `size_px`, the side of its images; `stride_px`, of overlapping patches, None
    if patches do not overlap or there are none; `mean` and `std`, the normalisation of pretraining, on a
    0..1 scale; `adapters` and `prompts`, added by `guie.models.adapters`; `new`, names of modules that
    were not pretrained, "" for the whole backbone.

    Args:
        native: the library's description of the pretraining: `size`, `mean`, `std`.
        size_px: side of the images; None: as in pretraining.
        stride_px: stride of the patches; None: the patch size.

    Raises:
        UserError: size and stride do not fit the patches.
    """

    def __init__(
        self,
        tower: Tower,
        native: dict[str, Any],
        size_px: int | None = None,
        stride_px: int | None = None,
    ):
        super().__init__()
        self.tower: Tower = tower
        self.adapters: Any = None
        self.prompts: Any = None
        self.layers: Layers | None = None
        self.new: list[str] = []
        self.mean, self.std = list(native["mean"]), list(native["std"])
        size = native["size"]
        self.native_px = self.size_px = size if isinstance(size, int) else size[-1]
        self.stride_px: int | None = None
        if size_px or stride_px:
            self.set_image_size(size_px or self.native_px, stride_px)
        self.dim = _probe_dim(tower, self.size_px)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """(B, 3, S, S) normalised images -> (B, F) features."""
        return self.layers(self.tower, images_BCHW) if self.layers else self.tower(images_BCHW)

    def take_layers(self, config: LayersConfig) -> None:
        """Return features of intermediate layers from now on. Raises UserError as `Layers`."""
        added = [p for part in (self.adapters, self.prompts) if part for p in part.parameters()]
        self.layers = Layers(self.tower, config, self.size_px, added)
        self.dim = self.layers.dim

    def set_image_size(self, size_px: int, stride_px: int | None = None) -> None:
        """Set the side of the square images, and the stride of their patches.

        Position embeddings are interpolated, weights kept. Without a stride, patches do not overlap,
        whatever was set before. Raises UserError if patches do not fit the image. The pretraining's size
        is always allowed: some backbones drop its last pixels (SigLIP's 384 px in patches of 14).
        """
        patch_px = patch_size(self.tower)
        if patch_px:
            stride_px = stride_px or patch_px
            if size_px != self.native_px or stride_px != patch_px:
                refuse_misfit(size_px, patch_px, stride_px)
            set_grid(self.tower, size_px, stride_px)
        elif stride_px:
            raise UserError(
                f"stride_px {stride_px}: {type(self.tower).__name__} has no patches with a stride to"
                " set; remove it"
            )
        elif hasattr(self.tower, "set_input_size"):
            self.tower.set_input_size((size_px, size_px))
        self.size_px, self.stride_px = size_px, None if stride_px == patch_px else stride_px

    def checkpoint_gradients(self) -> None:
        """Enable gradient checkpointing: keep each block's input only, and recompute in the backward pass.

        Raises UserError if the backbone does not support it.
        """
        try:
            self.tower.set_grad_checkpointing(True)
        except (AttributeError, AssertionError):
            raise UserError(
                f"gradient_checkpointing: {type(self.tower).__name__} does not support it; set it to false"
            ) from None

    def train(self, mode: bool = True) -> Backbone:
        """Set train mode, but keep pretrained BatchNorm statistics frozen.

        Batches of one domain would pull BatchNorm to that domain. Modules trained from scratch have no
        statistics yet and learn them; with several processes, from the first process's images.
        """
        super().train(mode)
        for name, module in self.tower.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and not self._is_new(name):
                module.eval()
        return self

    def _is_new(self, name: str) -> bool:
        return any(not new or f"{name}.".startswith(f"{new}.") for new in self.new)


def build_backbone(
    config: BackboneConfig, size_px: int | None = None, weights: bool = True
) -> Backbone:
    """Create the backbone with its pretrained weights; `weights=False`: random, to be loaded later.

    Without `size_px`, images have the size of pretraining.

    Raises UserError for an unknown name, tag or file.
    """
    with _one_line_errors(config):
        if config.library == "timm":
            backbone = _build_timm(config, weights, size_px)
        else:
            backbone = backbone_of_clip(create_clip(config, weights), config, size_px)
    backbone.new = config.reset if config.pretrained else [""]
    if config.reset and weights:
        _begin_anew(backbone, config, size_px)
    return backbone


def _begin_anew(backbone: Backbone, config: BackboneConfig, size_px: int | None) -> None:
    """Reinitialise the named modules as the library does. Raises UserError for an unknown module."""
    state = backbone.tower.state_dict()
    fresh = build_backbone(config, size_px, weights=False).tower.state_dict()
    for name in config.reset:
        own = {key: value for key, value in fresh.items() if f"{key}.".startswith(f"{name}.")}
        if not own:
            kind = type(backbone.tower).__name__
            raise UserError(
                f"model.backbone.reset: {kind} has no weights in {name!r}; name one of its modules"
            )
        state |= own
    backbone.tower.load_state_dict(state)


def create_clip(config: BackboneConfig, weights: bool = True) -> Clip:
    """Create a whole open_clip model, image and text encoder, in fp32. Raises UserError."""
    pretrained = find_weights(config) if weights else None
    # open_clip warns about random weights, which are intended when none are given.
    logging.disable(logging.NOTSET if pretrained else logging.WARNING)
    try:
        with _one_line_errors(config), _read_from(config, pretrained):
            return open_clip.create_model(
                config.name,
                pretrained=config.pretrained if pretrained else None,
                pretrained_image=False,
                pretrained_text=False,
                weights_only=True,
                **config.kwargs,
            )
    finally:
        logging.disable(logging.NOTSET)


def backbone_of_clip(clip: Clip, config: BackboneConfig, size_px: int | None) -> Backbone:
    """Return the image encoder of an open_clip model; parameters are shared, not copied."""
    if config.features == "pooled":
        _drop_projection(clip.visual, config.name)
    native = open_clip.get_model_preprocess_cfg(clip)
    tag = open_clip.get_pretrained_cfg(config.name, config.pretrained or "") or {}
    # If the weights come from a run's own file, open_clip has not applied the tag's statistics.
    native |= {key: tag[key] for key in ("mean", "std") if key in tag}
    return Backbone(clip.visual, native, size_px, config.stride_px)


def _build_timm(config: BackboneConfig, weights: bool, size_px: int | None) -> Backbone:
    pretrained = find_weights(config) if weights else None
    # The tag sets the statistics, even if the weights come from a run's own file.
    tagged = config.pretrained and not is_file(config.pretrained)
    # custom_load is for the authors' .npz; the hub's file has another format
    overlay = {"file": str(pretrained.file), "custom_load": False} if pretrained else None
    tower: Tower = timm.create_model(
        f"{config.name}.{config.pretrained}" if tagged else config.name,
        pretrained=pretrained is not None,
        pretrained_cfg_overlay=overlay,
        num_classes=0,
        **config.kwargs,
    )
    # A weights file has no statistics: the default tag's are the best guess, and the config may set
    # others.
    cfg = tower.pretrained_cfg
    native = {"size": cfg["input_size"], "mean": cfg["mean"], "std": cfg["std"]}
    return Backbone(tower, native, size_px, config.stride_px)


@contextmanager
def _read_from(config: BackboneConfig, pretrained: Weights | None) -> Iterator[None]:
    """Make open_clip read a tag's weights from the checked file.

    Loading is by tag and not by file, because the tag also sets the statistics and the activation.
    """
    known = open_clip.get_pretrained_cfg(config.name, config.pretrained) if pretrained else None
    if pretrained is None or not known:
        yield
        return
    known["file"] = str(pretrained.file)  # open_clip prefers it to the tag's hub and URL
    try:
        yield
    finally:
        del known["file"]


@contextmanager
def _one_line_errors(config: BackboneConfig) -> Iterator[None]:
    """Turn library errors for a bad name, argument or file into a UserError of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if re.search("weights.only", str(error), re.IGNORECASE):
            reason = (
                "the file holds Python objects, not only tensors, which could run code; convert it to"
                " .safetensors if you trust it"
            )
        raise UserError(
            f"model.backbone: {config.library} cannot build {config.name!r}"
            f" with pretrained {config.pretrained!r} and {config.kwargs}: {reason}"
        ) from error


def _drop_projection(tower: Tower, name: str) -> None:
    """Remove CLIP's last projection, as the challenge's 2nd place did."""
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
