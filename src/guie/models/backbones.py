"""Pretrained image towers of open_clip and timm behind one surface.

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

# A whole model of open_clip, image and text tower, of one class or another; it has no types.
Clip = Any

# Our tiny CLIP is described in open_clip's own format and found by name like any other.
open_clip.add_model_config(Path(__file__).with_name("open_clip_configs"))


class Backbone(nn.Module):
    """An image tower without its classifier.

    Attributes: `dim` (F); `size_px`, the side of its images; `stride_px`, of patches that overlap,
    None where they lie side by side or there are none; `mean` and `std`, what the tower was trained
    with, on a 0..1 scale; `adapters` and `prompts`, what `guie.model.adapters` has added to the tower;
    `new`, modules of the tower by name that were not pretrained, "" for all of it.

    Args:
        native: the library's description of the pretraining: `size`, `mean`, `std`.
        size_px: of the images; None keeps the pretraining's.
        stride_px: of the patches; None: the patch size.

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
        """Give features of the tower's own layers from now on. Raises UserError as `Layers`."""
        added = [p for part in (self.adapters, self.prompts) if part for p in part.parameters()]
        self.layers = Layers(self.tower, config, self.size_px, added)
        self.dim = self.layers.dim

    def set_image_size(self, size_px: int, stride_px: int | None = None) -> None:
        """Take square images of this size, in patches that begin every `stride_px`.

        Position embeddings are interpolated, weights kept. Without a stride the patches lie side by
        side, whatever they did before. Raises UserError where patches do not fit, but for the size
        of the pretraining: some towers leave out its last pixels (SigLIP's 384 by 14).
        """
        patch_px = patch_size(self.tower)
        if patch_px:
            stride_px = stride_px or patch_px
            if size_px != self.native_px or stride_px != patch_px:
                refuse_misfit(size_px, patch_px, stride_px)
            set_grid(self.tower, size_px, stride_px)
        elif stride_px:
            raise UserError(
                f"stride_px {stride_px}: {type(self.tower).__name__} has no patches that could"
                " overlap; leave it out"
            )
        elif hasattr(self.tower, "set_input_size"):
            self.tower.set_input_size((size_px, size_px))
        self.size_px, self.stride_px = size_px, None if stride_px == patch_px else stride_px

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
        """Train mode, but batch statistics stay those of the pretraining, where there was one.

        One-domain batches would pull BatchNorm to the domain of the step. What begins anew has no
        statistics yet: there they are learned, by several processes those of the first one's images.
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
    """Create the tower with its pretrained weights (`weights=False`: random, to be loaded over).

    Without `size_px` it takes images of the size it was pretrained with.

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
    """Draw the weights of the named modules as the library does. Raises UserError for an unknown one."""
    state = backbone.tower.state_dict()
    fresh = build_backbone(config, size_px, weights=False).tower.state_dict()
    for name in config.reset:
        own = {key: value for key, value in fresh.items() if f"{key}.".startswith(f"{name}.")}
        if not own:
            kind = type(backbone.tower).__name__
            raise UserError(
                f"model.backbone.reset: {kind} has no weights in {name!r}; name a module of it"
            )
        state |= own
    backbone.tower.load_state_dict(state)


def create_clip(config: BackboneConfig, weights: bool = True) -> Clip:
    """A whole open_clip model, image and text tower, in fp32. Raises UserError."""
    pretrained = find_weights(config) if weights else None
    # open_clip warns of random weights, which are meant where none are given.
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
    """The image tower of an open_clip model; the parameters are shared, not copied."""
    if config.features == "pooled":
        _drop_projection(clip.visual, config.name)
    native = open_clip.get_model_preprocess_cfg(clip)
    tag = open_clip.get_pretrained_cfg(config.name, config.pretrained or "") or {}
    # A tower whose weights come from a run's own file was not told the tag's statistics.
    native |= {key: tag[key] for key in ("mean", "std") if key in tag}
    return Backbone(clip.visual, native, size_px, config.stride_px)


def _build_timm(config: BackboneConfig, weights: bool, size_px: int | None) -> Backbone:
    pretrained = find_weights(config) if weights else None
    # The tag knows the statistics, also where the weights come from a run's own file.
    tagged = config.pretrained and not is_file(config.pretrained)
    # custom_load: of the authors' .npz, which the hub's file is not
    overlay = {"file": str(pretrained.file), "custom_load": False} if pretrained else None
    tower: Tower = timm.create_model(
        f"{config.name}.{config.pretrained}" if tagged else config.name,
        pretrained=pretrained is not None,
        pretrained_cfg_overlay=overlay,
        num_classes=0,
        **config.kwargs,
    )
    # Weights from a bare file carry no statistics: the default tag's are the best guess, and the
    # config may state others.
    cfg = tower.pretrained_cfg
    native = {"size": cfg["input_size"], "mean": cfg["mean"], "std": cfg["std"]}
    return Backbone(tower, native, size_px, config.stride_px)


@contextmanager
def _read_from(config: BackboneConfig, pretrained: Weights | None) -> Iterator[None]:
    """Let open_clip read a tag's weights from the file that was checked.

    By its tag and not as a file, for the tag knows the statistics and the activation too.
    """
    known = open_clip.get_pretrained_cfg(config.name, config.pretrained) if pretrained else None
    if pretrained is None or not known:
        yield
        return
    known["file"] = str(pretrained.file)  # which open_clip takes before the tag's hub and URL
    try:
        yield
    finally:
        del known["file"]


@contextmanager
def _one_line_errors(config: BackboneConfig) -> Iterator[None]:
    """Turn what the libraries raise for a bad name, argument or file into one line each."""
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


def _drop_projection(tower: Tower, name: str) -> None:
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
