"""Random views of a training image, by albumentations; each is a pure function of its seed.

The model's own preprocessing comes after, so that what is trained is what is scored. A view larger
than the network's input is shrunk to it before colours are touched, by the same filter in 8 bits:
several times faster, and what the preprocessing then does changes nothing but the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import albumentations as A
import numpy as np
import torch

from guie.config.run import AugmentConfig

GREY = 128


class RandomArea(A.ImageOnlyTransform):
    """Cut out a random box: torchvision's RandomResizedCrop without its resize.

    Args:
        scale: range of the box's share of the image area.
        ratio: range of the box's aspect ratio relative to the image's, drawn in log space.
    """

    def __init__(self, scale: Sequence[float], ratio: Sequence[float]):
        super().__init__(p=1.0)
        self.scale, self.ratio = tuple(scale), tuple(ratio)

    def get_params_dependent_on_data(self, params: dict[str, Any], data: dict[str, Any]) -> dict:
        height, width = params["shape"][:2]
        side = math.sqrt(self.py_random.uniform(*self.scale))
        stretch = math.exp(self.py_random.uniform(*map(math.log, self.ratio)) / 2)
        box_h = min(height, max(1, round(height * side / stretch)))
        box_w = min(width, max(1, round(width * side * stretch)))
        top = self.py_random.randint(0, height - box_h)
        left = self.py_random.randint(0, width - box_w)
        return {"box": (top, left, top + box_h, left + box_w)}

    def apply(self, img: np.ndarray, box: tuple[int, int, int, int], **_: Any) -> np.ndarray:
        top, left, bottom, right = box
        return img[top:bottom, left:right]


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


class Augment:
    """uint8 image (H, W, 3), seed -> uint8 image of another size.

    Args:
        config: what is drawn.
        size_px, fit: of the model's preprocessing.
    """

    def __init__(self, config: AugmentConfig, size_px: int, fit: str):
        steps: list[A.BasicTransform] = []
        if config.crop_scale != [1.0, 1.0] or config.crop_ratio != [1.0, 1.0]:
            steps.append(RandomArea(config.crop_scale, config.crop_ratio))
        steps.append(ShrinkToFit(size_px, fit))
        if config.flip:
            steps.append(A.HorizontalFlip(p=config.flip))
        if config.color:
            bounds = (max(0.0, 1 - config.color), 1 + config.color)
            steps.append(A.ColorJitter(bounds, bounds, bounds, hue=(0.0, 0.0), p=0.8))
        if config.gray:
            # Not ToGray: it drops an axis of images that are one pixel wide or high.
            same, none = (1.0, 1.0), (0.0, 0.0)
            steps.append(A.ColorJitter(same, same, saturation=none, hue=none, p=config.gray))
        if config.blur:
            steps.append(A.GaussianBlur(sigma_limit=(0.3, 1.5), p=config.blur))
        if config.erase:
            side = (0.1, 0.4)
            steps.append(A.CoarseDropout((1, 1), side, side, fill=GREY, p=config.erase))
        self.compose = A.Compose(steps)
        # The shorter side of the smallest view is this much of the image's.
        low, high = config.crop_ratio
        smallest = math.sqrt(min(1.0, config.crop_scale[0]) * min(1.0, low, 1 / high))
        self.least_px = math.ceil(size_px / smallest)

    def __call__(self, image_HWC: np.ndarray, seed: int) -> np.ndarray:
        self.compose.set_random_seed(seed)
        return self.compose(image=image_HWC)["image"]
