"""The model as a `torch.export` program: any number of images, of any size, in one graph.

`torch.export` runs the model once on sizes that are symbols. Where the preprocessing compares sizes to
choose a way, which TorchScript keeps, a symbol would be bound to the side that it fell on: here the
same sums are written without a choice. PyTorch 2.7's `sym_max` chooses all the same: its programs of pad
and crop are wrong for other shapes than `EXAMPLE_SHAPE`'s, and the comparison refuses them; 2.15's are not.

Shapes: B images, S the network's side in pixels, H x W the size given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from guie.base.errors import UserError
from guie.model import Scored
from guie.model.preprocess import Preprocess, _half

# An int that is not known yet. torch calls it SymInt, where its own functions say int.
Side = Any
# What the trace sees: neither square nor of one image, for 0 and 1 would become constants.
EXAMPLE_SHAPE = (2, 3, 37, 53)
MOST = 2**31 - 1  # without a bound torch 2.7 finds a size of 2**63 - 1 that would not do


def exported_program(model: Scored, source: str) -> ExportedProgram:
    """uint8 (B, 3, H, W), B, H, W >= 1 -> (B, D), as a program that needs nothing of this package.

    The model is left on the CPU, in fp32 and eval mode.

    A model that chooses its way by the size of an image keeps the way of `EXAMPLE_SHAPE`: only images of
    other shapes tell. Raises UserError where it cannot be exported.
    """
    model.cpu().float().eval().requires_grad_(False)
    images = torch.zeros(EXAMPLE_SHAPE, dtype=torch.uint8)
    sizes = {
        dim: Dim(name, max=MOST) for dim, name in {0: "batch", 2: "height", 3: "width"}.items()
    }
    try:
        with symbolic_sizes(), torch.no_grad():
            return torch.export.export(model, (images,), dynamic_shapes=(sizes,), strict=False)
    except Exception as error:  # of many kinds, and of many lines
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{source}: torch.export cannot hold this model for images of any size: {reason};"
            " `--format torchscript` keeps what chooses by size"
        ) from error


@contextmanager
def symbolic_sizes() -> Iterator[None]:
    """Within it, the preprocessing and the shapes of images are computed without a choice by size."""
    with ExitStack() as stack:
        for name in ("resized", "padded", "_resize", "_crop"):
            stack.enter_context(patch.object(Preprocess, name, globals()[f"_{name.strip('_')}"]))
        stack.enter_context(patch("guie.model.scored.image_shapes", _image_shapes))
        yield


def _resized(self: Preprocess, images: Tensor) -> Tensor:
    height: Side = images.size(2)
    width: Side = images.size(3)
    if self.fit == "crop":
        return self._crop(images)
    if self.fit == "squash":
        return self._resize(images, self.size_px, self.size_px)
    size, longer = self.size_px, torch.sym_max(height, width)
    height = torch.sym_max(2, (2 * size * height + longer) // (2 * longer))
    width = torch.sym_max(2, (2 * size * width + longer) // (2 * longer))
    return self._resize(images, height, width)


def _padded(self: Preprocess, images: Tensor) -> Tensor:
    """Every pixel of the square looks up its own in the image, or is white."""
    if self.fit != "pad":
        return images
    size = self.size_px
    for dim in (2, 3):
        length = images.size(dim)
        place = torch.arange(size, device=images.device) - (size - length) // 2
        inside = (place >= 0) & (place < length)
        images = images.index_select(dim, torch.minimum(place.clamp(min=0), _scalar(length) - 1))
        shape = [1, 1, 1, 1]
        shape[dim] = size
        images = torch.where(inside.view(shape), images, 255.0)
    return images


def _resize(self: Preprocess, images: Tensor, height: Side, width: Side) -> Tensor:
    return self.upsampled(images.float(), height, width).clamp(0.0, 255.0)


def _crop(self: Preprocess, images: Tensor) -> Tensor:
    size, shorter = self.size_px, torch.sym_min(images.size(2), images.size(3))
    for dim in (2, 3):
        length: Side = torch.sym_min(4 * shorter + images.size(dim) % 2, images.size(dim))
        images = _central(images, dim, length)
    height: Side = size * images.size(2) // shorter
    width: Side = size * images.size(3) // shorter
    resized = self._resize(images, height, width)
    return _central(_central(resized, 2, size), 3, size)


def _central(images: Tensor, dim: int, length: Side) -> Tensor:
    """So many rows (dim 2) or columns (3) from the middle."""
    first = _half(images.size(dim) - length)
    return images.index_select(dim, torch.arange(length) + _scalar(first))


def _image_shapes(images_BCHW: Tensor) -> Tensor:
    height, width = (_scalar(images_BCHW.size(dim)).float() for dim in (2, 3))
    shape_3 = torch.stack([height / width, height / 224.0, width / 224.0])
    return shape_3.expand(images_BCHW.size(0), 3)


def _scalar(size: Side) -> Tensor:
    return torch.full((), size, dtype=torch.int64)
