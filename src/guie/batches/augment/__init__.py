"""Random views of a training image; each is a pure function of its seed.

A view is a part of the image, resized by the model's own preprocessing, so that what is trained is
what is scored, and then changed in its pixels at the network's size. (A config may ask for another
resize, and for some of the changes before it.)
"""

from __future__ import annotations

import random

import cv2
import numpy as np

from guie.batches.augment.area import random_area, random_part
from guie.batches.augment.colour import recoloured
from guie.batches.augment.distortions import Distortions
from guie.config.augment import AugmentConfig
from guie.data.images import Part

COLORS = {"grey": 128, "black": 0}
# OpenCV warps nothing whose side does not fit 16 bits with a sign.
MAX_SIDE_PX = 32_766


class Augment:
    """What is drawn for a view: its `part` of the image, and by calling it, its pixels.

    Between the two, `at_full_size` changes what is not yet resized.

    Args:
        config: what is drawn.
    """

    def __init__(self, config: AugmentConfig):
        self.config, self.distortions = config, Distortions(config)

    def part(self, seed: int) -> Part:
        """Which part of the image is seen."""
        draw = random.Random(seed)
        return random_part(draw, self.config.crop_scale, self.config.crop_ratio)

    def at_full_size(self, part_HWC: np.ndarray, seed: int) -> np.ndarray:
        """Distort the uint8 part (H, W, 3) before its resize, where the config says so.

        A side beyond OpenCV's limit leaves the part as it is.
        """
        if not self.config.full_size or max(part_HWC.shape) > MAX_SIDE_PX:
            return part_HWC
        own = random.Random(seed).getrandbits(32)  # not the stream that `__call__` draws from
        return self.distortions(np.ascontiguousarray(part_HWC), own)

    def __call__(self, image_HWC: np.ndarray, seed: int) -> np.ndarray:
        """uint8 image (H, W, 3) -> another of the same size."""
        draw = random.Random(seed)
        if draw.random() < self.config.flip:
            image_HWC = cv2.flip(image_HWC, 1)
        image_HWC = self._recoloured(image_HWC, draw)
        if self.distortions and not self.config.full_size:
            image_HWC = self.distortions(image_HWC, draw.getrandbits(32))
        if draw.random() < self.config.erase:
            image_HWC = image_HWC.copy()
            for _ in range(self.config.erase_boxes):
                erased = random_area(draw, *self.config.erase_side)
                image_HWC[erased.of(*image_HWC.shape[:2])] = COLORS[self.config.erase_color]
        return image_HWC

    def _recoloured(self, image_HWC: np.ndarray, draw: random.Random) -> np.ndarray:
        bounds = [
            (max(0.0, 1 - strength), 1 + strength) for strength in self.config.color_strengths
        ]
        factors, levels = [draw.uniform(*bound) for bound in bounds], 0.0
        if most := self.config.brightness_levels:  # without it, no number is drawn
            levels = draw.uniform(-most, most)
        if draw.random() >= self.config.color_share:
            factors, levels = [1.0, 1.0, 1.0], 0.0
        if draw.random() < self.config.gray:
            factors[2] = 0.0
        brightness, contrast, saturation = factors
        return recoloured(image_HWC, brightness, contrast, saturation, levels)


__all__ = ["Augment"]
