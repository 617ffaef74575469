"""From an image of any size to the network's input; and the shape of the image, which squashing it loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from guie.config.ensemble import Resize
from guie.config.model import Fit


class Preprocess(nn.Module):
    """Resize to a square, then normalise; the same numbers eager, scripted, and in PyTorch 1.11.

    squash: both sides to S, the aspect ratio is lost and every pixel is seen.
    pad:    the longer side to S, centred on white.
    crop:   the shorter side to S, then the central square (CLIP's own, Radford et al. 2021).

    The resize is antialiased bicubic (a = -0.5, Keys 1981) in float, clamped to 0..255 as it
    overshoots, and not rounded. PIL's 8-bit one lies 0.2 grey levels away in the mean over real
    images; more at hard edges, up to 30, where PIL clips between its two passes. It is called by
    the name of its core operator because `F.interpolate` compiles to operators that PyTorch 1.11
    lacks, and no branch skips it where the size already fits, so a trace could not lose it.
    `resize` and `antialias` are what a composition may change of it; training knows the default alone.

    Raises ValueError for a size below 2, an unknown `fit`, mean or std of other than three numbers,
    or a std that is not positive.
    """

    def __init__(
        self,
        size_px: int,
        mean: Sequence[float],
        std: Sequence[float],
        fit: Fit = "squash",
        resize: Resize = "bicubic",
        antialias: bool = True,
    ) -> None:
        super().__init__()
        if size_px < 2:
            raise ValueError(f"size_px is {size_px}: at least 2 is needed")
        if fit not in get_args(Fit):
            raise ValueError(f"fit is {fit!r}: one of {', '.join(get_args(Fit))} is needed")
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(f"mean {list(mean)}, std {list(std)}: three numbers each, std > 0")
        self.size_px = size_px
        self.fit: str = fit
        self.bilinear, self.antialias = resize == "bilinear", antialias
        self.mean: Tensor
        self.std: Tensor
        # In grey levels. Not persistent: the config states them, and no checkpoint can disagree.
        self.register_buffer("mean", 255 * torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 or float in 0..255, any H, W >= 1 -> (B, 3, S, S) float32.

        The result lies on the module's device, wherever the images came from. Raises ValueError for
        any other shape.
        """
        if images.dim() != 4 or images.size(1) != 3:
            raise ValueError("images of shape (B, 3, H, W) are needed")
        images = images.to(self.mean.device).to(torch.float32)
        return self.normalised(self.padded(self.resized(images)))

    @torch.jit.ignore
    def recipe(self) -> dict[str, Any]:
        """What it does, as JSON has it; mean and std on a 0..1 scale."""
        mean, std = ((grey / 255).flatten().tolist() for grey in (self.mean, self.std))
        recipe = {"size_px": self.size_px, "fit": self.fit, "mean": mean, "std": std}
        if self.bilinear:  # what is as ever is not said: features on disk are known by this
            recipe["resize"] = "bilinear"
        return recipe if self.antialias else recipe | {"antialias": False}

    def resized(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 3, h, w) of the same type, not yet padded to S x S."""
        if self.fit == "pad":
            size, longer = self.size_px, max(images.size(2), images.size(3))
            # Nearest in integers: `round` takes halves to even in Python, away from 0 in
            # TorchScript. At least 2: PyTorch 2.15 (not 1.11) reduces the height wrongly where the
            # width becomes 1.
            height = max(2, (2 * size * images.size(2) + longer) // (2 * longer))
            width = max(2, (2 * size * images.size(3) + longer) // (2 * longer))
            return self._resize(images, height, width)
        if self.fit == "crop":
            return self._crop(images)
        return self._resize(images, self.size_px, self.size_px)

    def padded(self, images: Tensor) -> Tensor:
        """What `resized` gives, centred on white."""
        if self.fit != "pad":
            return images
        size, height, width = self.size_px, images.size(2), images.size(3)
        top, left = (size - height) // 2, (size - width) // 2
        border = [left, size - width - left, top, size - height - top]
        white = 255.0
        return torch.constant_pad_nd(images, border, white)

    def normalised(self, images: Tensor) -> Tensor:
        """What `padded` gives -> float32, on the device that the images are on."""
        mean, std = self.mean.to(images.device), self.std.to(images.device)
        return (images - mean).div_(std)  # on large batches fresh memory is what costs

    def shrinks(self, height: int, width: int) -> bool:
        """Whether `resized` enlarges an image of this size in neither direction."""
        if self.fit == "pad":
            return max(height, width) >= self.size_px and min(height, width) >= 2
        return min(height, width) >= self.size_px

    def resized_in_8_bits(self, images: Tensor) -> Tensor:
        """`resized` of uint8 images on the CPU, rounded to uint8.

        Where it shrinks the rounding is that of torch's kernel for 8 bits, which takes a fraction
        of the time and, as PIL, rounds and clips between its two passes.
        """
        if self.shrinks(images.size(2), images.size(3)):
            return self.resized(images)
        return self.resized(images.to(torch.float32)).round().to(torch.uint8)

    def _resize(self, images: Tensor, height: int, width: int) -> Tensor:
        if not torch.jit.is_scripting():  # training alone has use for 8 bits
            if images.dtype == torch.uint8:
                return _resized_in_8_bits(images, height, width)
        # CUDA's kernel keeps its taps in 48 KB of shared memory: from a reduction by 47 it refuses.
        if images.size(2) > 40 * height or images.size(3) > 40 * width:
            images = images.cpu()
        resized = self.upsampled(images, height, width)
        return resized.clamp(0.0, 255.0).to(self.mean.device)

    def upsampled(self, images: Tensor, height: int, width: int) -> Tensor:
        """float (B, 3, H, W) -> (B, 3, height, width), by the kernel that is asked for."""
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
        # 1 x 2000 would become S x 2000 S. What lies 1.5 squares beyond the crop cannot reach it.
        images = _centre(images, 4 * shorter + images.size(2) % 2, 4 * shorter + images.size(3) % 2)
        height = size * images.size(2) // shorter
        width = size * images.size(3) // shorter
        return _centre(self._resize(images, height, width), size, size)


def _resized_in_8_bits(images: Tensor, height: int, width: int) -> Tensor:
    # Channels last in memory, in and out: what the kernel is fastest on, and colours are changed in.
    shape = (images.size(0), 3, height, width)
    resized = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
    return torch.ops.aten._upsample_bicubic2d_aa(images, [height, width], False, out=resized)


def _centre(images: Tensor, height: int, width: int) -> Tensor:
    """The central height x width of the images, or all of a side that is shorter."""
    height, width = min(height, images.size(2)), min(width, images.size(3))
    top, left = _half(images.size(2) - height), _half(images.size(3) - width)
    return images[:, :, top : top + height, left : left + width]


def _half(margin: int) -> int:
    """Half of it, ties to even: where torchvision's CenterCrop, hence CLIP, begins."""
    return margin // 2 + (margin % 2) * (margin // 2 % 2)
