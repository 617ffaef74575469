"""The shape of an image as it came: what squashing it to a square loses."""

from __future__ import annotations

import torch
from torch import Tensor


def image_shape(height: int, width: int) -> list[float]:
    """H / W, H / 224 and W / 224 of an image in pixels (the challenge's 5th place)."""
    return [height / width, height / 224.0, width / 224.0]


def image_shapes(images_BCHW: Tensor) -> Tensor:
    """(B, C, H, W) images of one size -> (B, 3) float32, `image_shape` of each."""
    shape = image_shape(images_BCHW.size(2), images_BCHW.size(3))
    rows = [shape] * images_BCHW.size(0)
    return torch.tensor(rows, dtype=torch.float32, device=images_BCHW.device)
