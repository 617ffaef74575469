"""The base class of image backbones with their batch normalisation, and the registry of libraries.

Shapes: B images, C channels, H height, W width, S side, F backbone features; N tokens of D features, P
patches.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from guie.base.errors import UserError
from guie.config.model import LIBRARIES, BackboneConfig, BatchNorm, LayersConfig
from guie.models.layers import Layers, Passthrough


class HubLayout(NamedTuple):
    """The folder that a library loads from the Hugging Face Hub, and the code that does so."""

    config: str  # a file, as `weights`
    weights: str
    load: str  # lines of Python that create `backbone` and `transform` from an `{address}`
    encode: str  # the expression that maps `images` to features
    pads: bool  # whether the transform can pad with a colour
    note: str = ""  # a last sentence for the README


@dataclass(frozen=True)
class Branch:
    """A residual branch of a block, z + after(... norm(z))."""

    norm: nn.Module  # whose output is the branch's input
    module: nn.Module  # the attention or MLP itself
    after: nn.Module  # the last module before the sum


@dataclass(frozen=True)
class Block:
    """One block: attention, then MLP."""

    module: nn.Module
    attention: Branch
    mlp: Branch


@dataclass(frozen=True)
class VitStructure:
    """A pre-norm transformer."""

    width: int  # D
    blocks: Sequence[Block]
    patches: nn.Module  # returns patch embeddings, as (B, P, D) or (B, D, rows, columns)
    entry: nn.Module  # whose output is the first block's input
    prefix: int  # number of tokens before the patches
    norm: nn.Module  # of the last block's output; Identity if only pooled features are normalised
    pooling: str  # how tokens become features: token (class token), avg or map (attention)
    # Whether tokens can be inserted: positions are added before the blocks, tensors are batch-first
    takes_tokens: bool
    class_position_D: Callable[[], Tensor | None]  # of the class token; None if it has none

    def chosen(self, blocks: str | Sequence[int], key: str) -> list[tuple[int, Block]]:
        """Return number and block of those named, or of all. Raises UserError for an unknown number."""
        numbers = range(len(self.blocks)) if isinstance(blocks, str) else blocks
        beyond = [number for number in numbers if number >= len(self.blocks)]
        if beyond:
            last = len(self.blocks) - 1
            raise UserError(f"{key}.blocks: {min(beyond)}: the backbone has blocks 0 to {last}")
        return [(number, self.blocks[number]) for number in sorted(set(numbers))]


class Backbone(nn.Module):
    """An image encoder without its classifier; a subclass for each library.

    A subclass sets `library`, the name in configs, and defines `build`. It imports its library in its
    methods, so that other libraries' models need not wait for it. The rest has defaults, and enables:

    - weights by tag: `hub_source`
    - other image sizes and strides: `patch_px`, `resize`
    - layers as features: `prefix_tokens`, `channels_last`
    - adapters and prompts: `structure`
    - learning rates by block, and FSDP: `blocks`, `top`
    - a hub folder: `hub`, `hub_content`, `open_hub`

    Attributes: `tower`, the library's model; `dim` (F); `size_px`, the side of its images; `stride_px`,
    of overlapping patches, None if patches do not overlap or there are none; `mean` and `std`, the
    normalisation of pretraining, on a 0..1 scale; `adapters` and `prompts`, added by
    `guie.models.adapters`; `new`, names of modules that were not pretrained, "" for the whole backbone;
    `batch_norm`, the stage's key.

    Args:
        native: the library's description of the pretraining: `size`, `mean`, `std`.
        size_px: side of the images; None: as in pretraining.
        stride_px: stride of the patches; None: the patch size.

    Raises UserError if size and stride do not fit the patches.
    """

    library: ClassVar[str]
    hub: ClassVar[HubLayout | None] = None  # None: the library loads no folder
    # The name of a transformer's block, or of a convolutional network's stage; its number is group 1
    blocks: ClassVar[str] = r"(?:blocks|resblocks|layers|stages)\.(\d+)"
    # Names of modules after the last block
    top: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        tower: Any,
        native: dict[str, Any],
        size_px: int | None = None,
        stride_px: int | None = None,
    ):
        super().__init__()
        self.tower = tower
        self.adapters: Any = None
        self.prompts: Any = None
        self.layers: Layers | None = None
        self.new: list[str] = []
        self.batch_norm: BatchNorm = "frozen"
        self.mean, self.std = list(native["mean"]), list(native["std"])
        size = native["size"]
        self.native_px = self.size_px = size if isinstance(size, int) else size[-1]
        self.stride_px: int | None = None
        if size_px or stride_px:
            self.set_image_size(size_px or self.native_px, stride_px)
        self.dim = _probe_dim(tower, self.size_px)

    @classmethod
    def build(cls, config: BackboneConfig, size_px: int | None, weights: Path | None) -> Backbone:
        """Create the configured backbone, at this image size or the pretraining's.

        Without a file of weights they are random.
        """
        raise NotImplementedError

    @classmethod
    def hub_source(cls, config: BackboneConfig) -> tuple[str, str, str]:
        """Return where the tag's weights are: a repository of the Hugging Face Hub and its file, or a URL.

        Raises UserError for an unknown tag.
        """
        raise UserError(
            f"model.backbone.pretrained: {cls.library} has no tags; give a weights file, by its path"
        )

    @property
    def trunk(self) -> Any:
        """The model inside the library's wrapper, or `tower` itself."""
        return self.tower

    @property
    def patch_px(self) -> int | None:
        """The side of the patches; None if there are none, or their grid cannot be set."""
        return None

    def resize(self, size_px: int, stride_px: int | None) -> None:
        """Set up the tower for images of this side; with `patch_px`, for patches with this stride.

        Position embeddings are interpolated by timm's resampler, bicubic and antialiased. Weights stay.
        """

    @property
    def prefix_tokens(self) -> int:
        """The number of tokens before the patches."""
        return 0

    @property
    def channels_last(self) -> bool:
        """Whether feature maps have the shape (B, H, W, C)."""
        return False

    def structure(self) -> VitStructure | None:
        """Return the parts that adapters attach to; None if it is not a pre-norm vision transformer."""
        return None

    def hub_content(
        self, config: BackboneConfig, image: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the library's config and the weights, for the files of `hub`; `image`: preprocessing."""
        raise NotImplementedError

    @staticmethod
    def open_hub(folder: Path) -> Callable[[Tensor], Tensor]:
        """Load the backbone from its hub folder, as `hub.load` does."""
        raise NotImplementedError

    @classmethod
    def block_of(cls, name: str) -> int | None:
        """Return the number of a parameter's block or stage; None outside of them."""
        match = re.search(rf"(?:^|\.){cls.blocks}\.", name)
        return int(match[1]) if match else None

    @classmethod
    def is_block(cls, name: str) -> bool:
        """Return whether a module of this name is a block or stage."""
        return re.fullmatch(rf"(?:.*\.)?{cls.blocks}", name) is not None

    @classmethod
    def is_top(cls, name: str) -> bool:
        """Return whether a parameter comes after the last block."""
        inside = re.split(r"\b(?:backbone|tower|trunk|visual|text)\.", name)[-1]
        return cls.block_of(name) is None and inside.split(".")[0] in cls.top

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """(B, 3, S, S) normalised images -> (B, F) features."""
        return self.layers(self.tower, images_BCHW) if self.layers else self.tower(images_BCHW)

    def take_layers(self, config: LayersConfig) -> None:
        """Return features of intermediate layers from now on. Raises UserError as `Layers`."""
        added = [p for part in (self.adapters, self.prompts) if part for p in part.parameters()]
        norm = self._final_norm(config.of) if config.norm == "after" else None
        self.layers = Layers(
            self.tower, config, self.size_px, self.prefix_tokens, self.channels_last, norm, added
        )
        self.dim = self.layers.dim

    def _final_norm(self, layers: Sequence[str]) -> str:
        """Return the name of the blocks' final norm. Raises UserError without one, or for no block."""
        structure = self.structure()
        if structure is None or isinstance(structure.norm, nn.Identity | Passthrough):
            raise UserError(
                f"model.layers.norm: after: {type(self.tower).__name__} has no norm before its pooling, or"
                " it was removed after other layers; set it to before"
            )
        names = {module: name for name, module in self.tower.named_modules()}
        blocks = [names[block.module] for block in structure.blocks]
        if others := [name for name in layers if name not in blocks]:
            raise UserError(
                f"model.layers.norm: after: {others[0]} is no block, such as {blocks[-1]}; set it to before"
            )
        return names[structure.norm]

    def set_image_size(self, size_px: int, stride_px: int | None = None) -> None:
        """Set the side of the square images, and the stride of their patches.

        Position embeddings are interpolated, weights kept. Without a stride, patches do not overlap,
        whatever was set before. Raises UserError as `refuse_misfit`.
        """
        self.refuse_misfit(size_px, stride_px)
        stride_px = stride_px or self.patch_px
        self.resize(size_px, stride_px)
        self.size_px, self.stride_px = size_px, None if stride_px == self.patch_px else stride_px

    def refuse_misfit(self, size_px: int, stride_px: int | None = None) -> None:
        """Raise UserError if patches do not fit the image, or there are none to set a stride of.

        The pretraining's size is always allowed: some backbones drop its last pixels (SigLIP's 384 px in
        patches of 14).
        """
        patch_px = self.patch_px
        if not patch_px:
            if stride_px:
                raise UserError(
                    f"stride_px {stride_px}: {type(self.tower).__name__} has no patches with a stride"
                    " to set; remove it"
                )
            return
        stride_px = stride_px or patch_px
        if stride_px > patch_px:
            raise UserError(
                f"stride_px {stride_px}: is above the patch size {patch_px} px, so pixels between"
                f" patches would be ignored; use 1 to {patch_px}"
            )
        over = (size_px - patch_px) % stride_px
        native = size_px == self.native_px and stride_px == patch_px
        if not native and (over or size_px < patch_px):
            smaller = max(patch_px, size_px - over)
            raise UserError(
                f"image size {size_px} px: not a whole number of patches of {patch_px} px with stride"
                f" {stride_px} px; use {smaller} or {smaller + stride_px}"
            )

    def checkpoint_gradients(self) -> None:
        """Enable gradient checkpointing: keep each block's input only, and recompute in the backward pass.

        Raises UserError if the backbone does not support it, or has new BatchNorm layers, whose running
        statistics would count each batch twice.
        """
        if self.new_batch_norms():
            raise UserError(
                "gradient_checkpointing: computes blocks twice, which would count a batch twice in the batch"
                " normalisation of new modules; set it to false"
            )
        try:
            self.tower.set_grad_checkpointing(True)
        except (AttributeError, AssertionError):
            lacks = f"{type(self.tower).__name__} does not support it"
            raise UserError(f"gradient_checkpointing: {lacks}; set it to false") from None

    def train(self, mode: bool = True) -> Backbone:
        """Set train mode, but keep BatchNorm statistics frozen where `batch_norm` does not train them.

        Batches of one domain would pull BatchNorm to that domain. Modules trained from scratch have no
        statistics yet and learn them; with several processes, from the first process's images.
        """
        super().train(mode)
        moving = self.trained_batch_norms() if mode else {}
        for name in batch_norms(self.tower).keys() - self.new_batch_norms():
            self.tower.get_submodule(name).train(name in moving)
        return self

    def new_batch_norms(self) -> set[str]:
        """Return the names of the BatchNorm layers in modules that were not pretrained."""
        layers = batch_norms(self.tower)
        return {name for name in layers if any(is_below(name, module) for module in self.new)}

    def set_batch_norm(self, setting: BatchNorm) -> None:
        """Set how BatchNorm layers train. Raises UserError as `trained_batch_norms`."""
        self.batch_norm = setting
        if setting == "synced" or (isinstance(setting, dict) and "synced" in setting.values()):
            # torch's own would drop timm's activations
            from timm.layers import convert_sync_batchnorm

            for name, layer in self.trained_batch_norms().items():  # the state dict stays
                if not isinstance(layer, nn.SyncBatchNorm):  # as an earlier stage left it
                    self.tower.set_submodule(name, convert_sync_batchnorm(layer))

    def trained_batch_norms(self, setting: BatchNorm | None = None) -> dict[str, _BatchNorm]:
        """Return the BatchNorm layers that a stage's `batch_norm` trains, by their names in the tower.

        The longest name above a layer decides. Raises UserError for a name above no BatchNorm layer.
        """
        setting = setting or self.batch_norm
        if setting == "frozen":
            return {}
        named = {"": setting} if isinstance(setting, str) else setting
        found = batch_norms(self.tower)
        for name in named:
            if not any(is_below(layer, name) for layer in found):
                where = f" in {name!r}" if name else ""
                known = f"it has {', '.join(list(found)[:40])}" if found else "remove batch_norm"
                kind = type(self.tower).__name__
                raise UserError(f"batch_norm: {kind} has no batch normalisation{where}; {known}")
        above = {layer: [name for name in named if is_below(layer, name)] for layer in found}
        return {
            layer: found[layer]
            for layer, names in above.items()
            if names and named[max(names, key=len)] != "frozen"
        }


def batch_norms(tower: nn.Module) -> dict[str, _BatchNorm]:
    """Return a model's BatchNorm layers by name."""
    return {name: one for name, one in tower.named_modules() if isinstance(one, _BatchNorm)}


def is_below(layer: str, name: str) -> bool:
    """Whether a layer is the named module or inside it; all are inside the module without a name."""
    return not name or f"{layer}.".startswith(f"{name}.")


@torch.no_grad()
def share_statistics(tower: nn.Module) -> None:
    """Give every process the first's running statistics of layers in train mode, in one message.

    Each process moves them by its own images, so they would validate different models.
    """
    if not distributed.is_initialized():
        return
    layers = batch_norms(tower).values()
    moving = [layer for layer in layers if layer.training and layer.track_running_stats]
    found: list[Any] = [one for layer in moving for one in (layer.running_mean, layer.running_var)]
    if not found:
        return
    flat = torch.cat([one_C.float() for one_C in found])
    distributed.broadcast(flat, src=0)
    for one_C, value_C in zip(found, flat.split([len(one_C) for one_C in found]), strict=True):
        one_C.copy_(value_C)


BACKBONES: dict[str, type[Backbone]] = {}


def register(kind: type[Backbone]) -> type[Backbone]:
    """Let configs and commands name the library of this subclass."""
    BACKBONES[kind.library] = kind
    if kind.library not in LIBRARIES:
        LIBRARIES.append(kind.library)
    return kind


def grid_side(size_px: int, patch_px: int, stride_px: int) -> int:
    """Return the number of patches along a side of the image.

    A stride below the patch size gives more tokens from the same pixels and weights. The challenge's 1st
    place used images of 290 px, patches of 14 px and a stride of 12 px: 24 x 24 tokens.
    """
    return (size_px - patch_px) // stride_px + 1


@contextmanager
def readable_errors(config: BackboneConfig) -> Iterator[None]:
    """Turn library errors for a bad name, argument or file into a UserError of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "loading state_dict" in reason:
            keys = textwrap.shorten(" ".join(str(error).splitlines()[1:]), 200, placeholder=" ...")
            reason = (
                f"the file's weights do not fit ({keys}); name a file of this backbone, or set pretrained to"
                " null and start_from to a run"
            )
        if re.search("weights.only", str(error), re.IGNORECASE):
            reason = (
                "the file holds Python objects, not only tensors, which could run code; convert it to"
                " .safetensors if you trust it"
            )
        raise UserError(
            f"model.backbone: {config.library} cannot build {config.name!r}"
            f" with pretrained {config.file or config.tag!r} and {config.kwargs}: {reason}"
        ) from error


def unknown_tag(config: BackboneConfig, tags: list[str], models: list[str]) -> UserError:
    """Return the error for a tag, or a model, that the library does not know."""
    if config.name not in models:
        near = difflib.get_close_matches(config.name, models)
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        return UserError(
            f"model.backbone.name: {config.library} has no model {config.name!r}{meant}"
        )
    return UserError(
        f"model.backbone.pretrained: {config.library} has no weights {config.tag!r} for"
        f" {config.name!r}; available: {', '.join(tags) or 'none'}"
    )


def _probe_dim(tower: nn.Module, size_px: int) -> int:
    training = tower.training
    with torch.no_grad():
        dim = tower.eval()(torch.zeros(1, 3, size_px, size_px)).shape[-1]
    tower.train(training)
    return dim
