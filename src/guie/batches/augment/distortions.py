"""What is done to the pixels of a view, by albumentations: a list of transforms from the config.

All work on images of any size from 1 x 1 and draw from the generators that a Compose gives them.
"""

from __future__ import annotations

import random
from typing import Any

import albumentations as A
import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from guie.config.augment import AugmentConfig

BORDERS = {"black": cv2.BORDER_CONSTANT, "mirror": cv2.BORDER_REFLECT}


class Distortions:
    """Draws and applies the config's distortions, but for flips, colours and boxes (`Augment`).

    A pure function of (image, seed). Of no distortion at all, False.
    """

    def __init__(self, config: AugmentConfig):
        self.compose = A.Compose(distortions(config))

    def __bool__(self) -> bool:
        return bool(self.compose.transforms)

    def __call__(self, image_HWC: np.ndarray, seed: int) -> np.ndarray:
        """uint8 image (H, W, 3) -> another of the same size."""
        # Not `set_random_seed`: it gives every transform the same numbers, and then all of the same
        # probability strike together.
        self.compose.set_random_state(np.random.default_rng(seed), random.Random(seed))
        return self.compose(image=image_HWC)["image"]


def distortions(config: AugmentConfig) -> list[A.BasicTransform]:
    """The transforms, in their order."""
    steps: list[A.BasicTransform] = []
    if config.auto:
        steps.append(LearnedPolicy(AutoAugmentPolicy(config.auto), p=1.0))
    if config.affine:
        steps.append(_affine(config))
    if config.hue:
        same, hue = (1.0, 1.0), (-config.hue, config.hue)
        steps.append(A.ColorJitter(same, same, same, hue, p=config.color_share))
    if config.rgb_shift:
        bounds = (-config.rgb_shift, config.rgb_shift)
        share = config.rgb_shift_share
        share = config.color_share if share is None else share
        steps.append(A.RGBShift(bounds, bounds, bounds, p=share))
    if config.blur:
        steps.append(A.GaussianBlur(sigma_limit=(0.3, 1.5), p=config.blur))
    if config.jpeg:
        steps.append(A.ImageCompression("jpeg", tuple(config.jpeg_quality), p=config.jpeg))
    return steps


def _affine(config: AugmentConfig) -> A.Affine:
    """One map for all three, so that pixels are interpolated once."""
    return A.Affine(
        scale=(1 - config.zoom, 1 + config.zoom),
        keep_ratio=True,
        translate_percent=(-config.shift, config.shift),
        rotate=(-config.rotate_deg, config.rotate_deg),
        border_mode=BORDERS[config.affine_border],
        fill=0,
        p=config.affine,
    )


class LearnedPolicy(A.ImageOnlyTransform):
    """AutoAugment (Cubuk et al., CVPR 2019): two operations of a policy learned on a dataset."""

    def __init__(self, policy: AutoAugmentPolicy, p: float = 1.0):
        super().__init__(p=p)
        self.operations = _SeededAutoAugment(policy)

    def get_params(self) -> dict[str, Any]:
        return {"seed": self.py_random.getrandbits(63)}

    def apply(self, img: np.ndarray, seed: int, **_: Any) -> np.ndarray:
        self.operations.generator.manual_seed(seed)
        return np.array(self.operations(Image.fromarray(img)))


class _SeededAutoAugment(AutoAugment):
    """torchvision's, drawing from a generator of its own and not from the process's."""

    def __init__(self, policy: AutoAugmentPolicy):
        super().__init__(policy)
        self.generator = torch.Generator()

    def get_params(self, transform_num: int) -> tuple[int, Tensor, Tensor]:
        """Which of the sub-policies, and for its two operations: chance, and sign."""
        number = int(torch.randint(transform_num, (1,), generator=self.generator))
        return (
            number,
            torch.rand((2,), generator=self.generator),
            torch.randint(2, (2,), generator=self.generator),
        )
