"""Preprocess images of any size to the network's input, and views of them for an ensemble.

Shapes: B images, S the side of a model's input, M input values of all models per image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.ensemble import ViewConfig
from guie.config.model import Fit, PadColor, Resize

PAD_LEVELS: dict[str, float] = {"white": 255.0, "black": 0.0}  # in grey levels


class Preprocess(nn.Module):
    """Resize to a square, then normalise; identical results eager, scripted, and in PyTorch 1.11.

    squash: both sides to S; the aspect ratio is lost, and every pixel is used.
    pad:    the longer side to S, centred on white or black (5th place, make_torchscript_wcls.py:84).
    crop:   the shorter side to S, then the central square (CLIP's own, Radford et al. 2021).

    The resize is antialiased bicubic (a = -0.5, Keys 1981) in float, clamped to 0..255 because it
    overshoots, and not rounded. PIL's 8-bit resize differs by 0.2 grey levels in the mean over real
    images, and by up to 30 at hard edges, where PIL clips between its two passes. The code calls the core
    operator because `F.interpolate` compiles to operators that PyTorch 1.11 lacks. It also resizes images
    that already fit, so that a trace always contains the resize. Ensembles may set `resize` and
    `antialias`; training always uses the defaults.

    Raises ValueError for a size below 2, an unknown `fit` or `pad_color`, mean or std without three
    values, or a std that is not positive.
    """

    def __init__(
        self,
        size_px: int,
        mean: Sequence[float],
        std: Sequence[float],
        fit: Fit = "squash",
        resize: Resize = "bicubic",
        antialias: bool = True,
        pad_color: PadColor = "white",
    ) -> None:
        super().__init__()
        if size_px < 2:
            raise ValueError(f"size_px is {size_px}: must be at least 2")
        if fit not in get_args(Fit):
            raise ValueError(f"fit is {fit!r}: must be one of {', '.join(get_args(Fit))}")
        if pad_color not in PAD_LEVELS:
            raise ValueError(f"pad_color is {pad_color!r}: must be {' or '.join(PAD_LEVELS)}")
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(
                f"mean {list(mean)}, std {list(std)}: must be three numbers each, std > 0"
            )
        self.size_px = size_px
        self.fit: str = fit
        self.pad_level = PAD_LEVELS[pad_color]
        self.bilinear, self.antialias = resize == "bilinear", antialias
        self.mean: Tensor
        self.std: Tensor
        # In grey levels. Not persistent: only the config states them, so no checkpoint can disagree.
        self.register_buffer("mean", 255 * torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, 3, H, W) uint8 or float in 0..255, any H, W >= 1, to (B, 3, S, S) float32.

        The result is on the module's device, wherever the images were. Raises ValueError for any other
        shape.
        """
        if images.dim() != 4 or images.size(1) != 3:
            raise ValueError("images must have shape (B, 3, H, W)")
        images = images.to(self.mean.device).to(torch.float32)
        return self.normalised(self.padded(self.resized(images)))

    @torch.jit.ignore
    def recipe(self) -> dict[str, Any]:
        """Return its settings as JSON; mean and std on a 0..1 scale."""
        mean, std = ((grey / 255).flatten().tolist() for grey in (self.mean, self.std))
        recipe = {"size_px": self.size_px, "fit": self.fit, "mean": mean, "std": std}
        if self.bilinear:  # defaults are left out: cached features on disk are keyed by this
            recipe["resize"] = "bilinear"
        if self.fit == "pad" and self.pad_level != PAD_LEVELS["white"]:
            recipe["pad_color"] = "black"
        return recipe if self.antialias else recipe | {"antialias": False}

    def resized(self, images: Tensor) -> Tensor:
        """Resize (B, 3, H, W) to (B, 3, h, w) of the same type, not yet padded to S x S."""
        if self.fit == "pad":
            size, longer = self.size_px, max(images.size(2), images.size(3))
            # Rounded in integers: `round` takes halves to even in Python, away from 0 in TorchScript.
            # At least 2: PyTorch 2.15 (not 1.11) resizes the height wrongly if the width becomes 1.
            height = max(2, (2 * size * images.size(2) + longer) // (2 * longer))
            width = max(2, (2 * size * images.size(3) + longer) // (2 * longer))
            return self._resize(images, height, width)
        if self.fit == "crop":
            return self._crop(images)
        return self._resize(images, self.size_px, self.size_px)

    def padded(self, images: Tensor) -> Tensor:
        """Centre the output of `resized` on the padding colour."""
        if self.fit != "pad":
            return images
        size, height, width = self.size_px, images.size(2), images.size(3)
        top, left = (size - height) // 2, (size - width) // 2
        border = [left, size - width - left, top, size - height - top]
        return torch.constant_pad_nd(images, border, self.pad_level)

    def normalised(self, images: Tensor) -> Tensor:
        """Normalise the output of `padded` to float32, on the images' device."""
        mean, std = self.mean.to(images.device), self.std.to(images.device)
        return (images - mean).div_(std)  # in place: for large batches, new memory is slow

    def shrinks(self, height: int, width: int) -> bool:
        """Whether `resized` enlarges neither side of an image of this size."""
        if self.fit == "pad":
            return max(height, width) >= self.size_px and min(height, width) >= 2
        return min(height, width) >= self.size_px

    def resized_in_8_bits(self, images: Tensor) -> Tensor:
        """Resize uint8 images on the CPU as `resized` does, rounded to uint8.

        To shrink images it uses torch's 8-bit kernel, which takes a fraction of the time and, like PIL,
        rounds and clips between its two passes.
        """
        if self.shrinks(images.size(2), images.size(3)):
            return self.resized(images)
        return self.resized(images.to(torch.float32)).round().to(torch.uint8)

    def _resize(self, images: Tensor, height: int, width: int) -> Tensor:
        if not torch.jit.is_scripting():  # only training uses 8 bits
            if images.dtype == torch.uint8:
                return _resized_in_8_bits(images, height, width)
        # CUDA's kernel keeps its taps in 48 KB of shared memory, and fails from a reduction by 47 on.
        if images.size(2) > 40 * height or images.size(3) > 40 * width:
            images = images.cpu()
        resized = self.upsampled(images, height, width)
        return resized.clamp(0.0, 255.0).to(self.mean.device)

    def upsampled(self, images: Tensor, height: int, width: int) -> Tensor:
        """Resize float (B, 3, H, W) to (B, 3, height, width) with the configured kernel."""
        size = [height, width]
        if self.bilinear and self.antialias:
            return torch.ops.aten._upsample_bilinear2d_aa(images, size, False)
        if self.bilinear:
            return torch.ops.aten.upsample_bilinear2d(images, size, False)
        if self.antialias:
            return torch.ops.aten._upsample_bicubic2d_aa(images, size, False)
        return torch.ops.aten.upsample_bicubic2d(images, size, False)

    def _crop(self, images: Tensor) -> Tensor:
        size = self.size_px
        shorter = min(images.size(2), images.size(3))
        # 1 x 2000 would become S x 2000 S. Pixels 1.5 squares beyond the crop cannot affect it.
        images = _centre(images, 4 * shorter + images.size(2) % 2, 4 * shorter + images.size(3) % 2)
        height = size * images.size(2) // shorter
        width = size * images.size(3) // shorter
        return _centre(self._resize(images, height, width), size, size)


def _resized_in_8_bits(images: Tensor, height: int, width: int) -> Tensor:
    # Channels last in memory, in and out: the kernel is fastest so, and colour changes use this layout.
    shape = (images.size(0), 3, height, width)
    resized = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
    return torch.ops.aten._upsample_bicubic2d_aa(images, [height, width], False, out=resized)


def _centre(images: Tensor, height: int, width: int) -> Tensor:
    """Crop the central height x width of the images, or all of a shorter side."""
    height, width = min(height, images.size(2)), min(width, images.size(3))
    top, left = _half(images.size(2) - height), _half(images.size(3) - width)
    return images[:, :, top : top + height, left : left + width]


def _half(margin: int) -> int:
    """Return half of it, ties to even: where the crop of torchvision's CenterCrop, hence CLIP, begins."""
    return margin // 2 + (margin % 2) * (margin // 2 % 2)


@dataclass(frozen=True)
class ViewSpec:
    """A model's preprocessing combined with a view."""

    size_px: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit = "squash"
    resize: Resize = "bicubic"
    antialias: bool = True
    part: float = 1.0
    at: str = "center"
    flip: bool = False
    pad_color: PadColor = "white"

    def through(self, view: ViewConfig) -> ViewSpec:
        """Apply a view to this preprocessing. Raises UserError if both take part of the image."""
        if self.part < 1 and view.part < 1:
            fault = f"part {view.part:g} applies to a member that already has part {self.part:g}"
            raise UserError(f"views: {fault}; set only one of the two")
        cut = view if view.part < 1 else self
        plain = view.resize == "bicubic" and view.antialias
        return replace(
            self,
            fit=view.fit or self.fit,
            resize=self.resize if plain else view.resize,
            antialias=self.antialias if plain else view.antialias,
            part=cut.part,
            at=cut.at,
            flip=self.flip != view.flip,
            pad_color=view.pad_color or self.pad_color,
        )

    def build(self) -> Preprocess | View:
        """Build the preprocessing module."""
        whole_px = max(self.size_px, round(self.size_px / self.part))
        settings = (self.fit, self.resize, self.antialias, self.pad_color)
        preprocess = Preprocess(whole_px, self.mean, self.std, *settings)
        return View(preprocess, self) if self.part < 1 or self.flip else preprocess


class View(nn.Module):
    """Preprocess to a larger square, then crop a part of it, optionally mirrored."""

    def __init__(self, preprocess: Preprocess, look: ViewSpec):
        super().__init__()
        self.preprocess, self.size_px, self.flip = preprocess, look.size_px, look.flip
        room = preprocess.size_px - look.size_px
        below, right = look.at.startswith("bottom"), look.at.endswith("right")
        self.top = room // 2 if look.at == "center" else room * below
        self.left = room // 2 if look.at == "center" else room * right
        self.seen: dict[str, Any] = {"part": look.part, "at": look.at, "flip": look.flip}

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, 3, H, W) to (B, 3, S, S), as `Preprocess` does."""
        side = self.size_px
        whole = self.preprocess(images)
        seen = whole[:, :, self.top : self.top + side, self.left : self.left + side]
        return torch.flip(seen, [3]) if self.flip else seen

    @torch.jit.ignore
    def recipe(self) -> dict[str, Any]:
        whole = self.preprocess.recipe()
        return whole | {"whole_px": whole["size_px"], "size_px": self.size_px} | self.seen


class Inputs(nn.Module):
    """All views of an image that an ensemble needs, flattened into one row.

    Loaders can then batch and transfer it like an image.

    Attributes: `sides_px`, the side of each view; `size_px`, the largest.
    """

    def __init__(self, looks: Sequence[ViewSpec]):
        super().__init__()
        self.looks = nn.ModuleList([look.build() for look in looks])
        self.sides_px = [look.size_px for look in looks]
        self.size_px = max(self.sides_px)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W), as for `Preprocess`, to (B, M) float32."""
        rows = []
        for look in self.looks:
            rows.append(look(images).flatten(1))
        return torch.cat(rows, dim=1)

    @torch.jit.ignore
    def recipe(self) -> dict[str, Any]:
        looks = cast("Sequence[Preprocess | View]", self.looks)  # a ModuleList has no element type
        return {"looks": [look.recipe() for look in looks]}


# For one model, and for an ensemble
AnyPreprocess = Preprocess | Inputs
