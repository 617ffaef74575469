"""Shrinking to the network's input before colours are touched: several times faster.

By the filter of the model's own preprocessing, in 8 bits; what that does afterwards changes nothing
but the rounding.
"""

from __future__ import annotations

from typing import Any

import albumentations as A
import numpy as np
import torch


class ShrinkToFit(A.ImageOnlyTransform):
    """Shrink to the size that `Preprocess` would resize to, by its filter, in 8 bits.

    An image that is smaller in one direction is left alone: to enlarge early would cost time.

    Args:
        size_px: side of the network's input.
        fit: squash, pad or crop, as `Preprocess` has it.
    """

    def __init__(self, size_px: int, fit: str):
        super().__init__(p=1.0)
        self.size_px, self.fit = size_px, fit

    def apply(self, img: np.ndarray, **_: Any) -> np.ndarray:
        # Of a very long image `crop` cuts the ends before it resizes.
        if self.fit == "crop" and max(img.shape[:2]) > 4 * min(img.shape[:2]):
            return img
        size = fitted_size(*img.shape[:2], self.size_px, self.fit)
        if size[0] > img.shape[0] or size[1] > img.shape[1] or size == img.shape[:2]:
            return img
        # A view with these strides is what torch's kernel for 8 bits is fastest on.
        image_1CHW = torch.from_numpy(np.array(img)).permute(2, 0, 1)[None]
        resized = torch.ops.aten._upsample_bicubic2d_aa(image_1CHW, list(size), False)
        return resized[0].permute(1, 2, 0).contiguous().numpy()


def fitted_size(height: int, width: int, size_px: int, fit: str) -> tuple[int, int]:
    """(height, width) that `Preprocess` resizes an image to, before it pads or crops."""
    if fit == "squash":
        return size_px, size_px
    if fit == "pad":
        longer = max(height, width)
        sides = ((2 * size_px * side + longer) // (2 * longer) for side in (height, width))
        return tuple(max(2, side) for side in sides)
    shorter = min(height, width)
    return size_px * height // shorter, size_px * width // shorter
