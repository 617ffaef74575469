"""Random views of a training image, by albumentations; each is a pure function of its seed.

The model's own preprocessing comes after, so that what is trained is what is scored.
"""

from __future__ import annotations

import math

import albumentations as A
import numpy as np

from guie.augment.area import RandomArea
from guie.augment.shrinking import ShrinkToFit, fitted_size
from guie.config.stages import AugmentConfig

GREY = 128


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


__all__ = ["Augment", "RandomArea", "ShrinkToFit", "fitted_size"]
