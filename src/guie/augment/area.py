"""A random box of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import albumentations as A
import numpy as np


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
