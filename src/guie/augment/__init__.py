"""Random views of a training image; each is a pure function of its seed.

A view is a part of the image, resized by the model's own preprocessing, so that what is trained is
what is scored, and then changed in its pixels at the network's size.
"""

from __future__ import annotations

import random

import cv2
import numpy as np

from guie.augment.area import random_area, random_part
from guie.augment.colour import recoloured
from guie.augment.distortions import Distortions
from guie.config.augment import AugmentConfig
from guie.images import Part

GREY = 128


class Augment:
    """What is drawn for a view: its `part` of the image, and by calling it, its pixels.

    Args:
        config: what is drawn.
    """

    def __init__(self, config: AugmentConfig):
        self.config, self.distortions = config, Distortions(config)

    def part(self, seed: int) -> Part:
        """Which part of the image is seen."""
        draw = random.Random(seed)
        return random_part(draw, self.config.crop_scale, self.config.crop_ratio)

    def __call__(self, image_HWC: np.ndarray, seed: int) -> np.ndarray:
        """uint8 image (H, W, 3) -> another of the same size."""
        draw = random.Random(seed)
        if draw.random() < self.config.flip:
            image_HWC = cv2.flip(image_HWC, 1)
        image_HWC = self._recoloured(image_HWC, draw)
        if self.distortions:
            image_HWC = self.distortions(image_HWC, draw.getrandbits(32))
        if draw.random() < self.config.erase:
            image_HWC = image_HWC.copy()
            erased = random_area(draw, *self.config.erase_side)
            image_HWC[erased.of(*image_HWC.shape[:2])] = GREY
        return image_HWC

    def _recoloured(self, image_HWC: np.ndarray, draw: random.Random) -> np.ndarray:
        bounds = [
            (max(0.0, 1 - strength), 1 + strength) for strength in self.config.color_strengths
        ]
        factors = [draw.uniform(*bound) for bound in bounds]
        if draw.random() >= self.config.color_share:
            factors = [1.0, 1.0, 1.0]
        if draw.random() < self.config.gray:
            factors[2] = 0.0
        return recoloured(image_HWC, *factors)


__all__ = ["Augment"]
