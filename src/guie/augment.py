"""Random views of a training image, by albumentations; each is a pure function of its seed.

Nothing here resizes: the model's own preprocessing comes after, so that what is trained is what
is scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import albumentations as A
import numpy as np

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


class Augment:
    """uint8 image (H, W, 3), seed -> uint8 image of another size."""

    def __init__(self, config: AugmentConfig):
        steps: list[A.BasicTransform] = []
        if config.crop_scale != [1.0, 1.0] or config.crop_ratio != [1.0, 1.0]:
            steps.append(RandomArea(config.crop_scale, config.crop_ratio))
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
        self.compose = A.Compose(steps) if steps else None

    def __call__(self, image_HWC: np.ndarray, seed: int) -> np.ndarray:
        if self.compose is None:
            return image_HWC
        self.compose.set_random_seed(seed)
        return self.compose(image=image_HWC)["image"]
