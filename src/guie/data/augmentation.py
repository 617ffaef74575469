"""Draw random views of a training image; each view is a pure function of its seed.

A view is a crop, resized by the model's own preprocessing, so that training matches scoring. Pixel
distortions then apply at the network's input size. A config can select another resize, and apply some
distortions before it.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import albumentations as A
import cv2
import numpy as np
import torch
from PIL import Image
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from guie.config.sampling import AugmentConfig
from guie.data.images import Region

TRIES = 10  # torchvision's
LUMA = np.array([0.299, 0.587, 0.114])  # of RGB, ITU-R BT.601
BORDERS = {"black": cv2.BORDER_CONSTANT, "mirror": cv2.BORDER_REFLECT}
COLORS = {"grey": 128, "black": 0}
# OpenCV cannot warp images whose side exceeds a signed 16-bit integer.
MAX_SIDE_PX = 32_766


def random_part(
    draw: random.Random,
    scale: Sequence[float],
    ratio: Sequence[float],
    height: float = 1.0,
    width: float = 1.0,
) -> Region:
    """Return a crop box that fits an image of any shape, as fractions of the sides.

    Args:
        scale: range of the box area as a fraction of the image area.
        ratio: range of the box's aspect ratio relative to the image's, drawn in log space.
        height, width: size of a window, as fractions of the image's sides. `scale` and `ratio` are then
            relative to the window, and the box may be anywhere in the image.
    """
    side = math.sqrt(draw.uniform(*scale))
    stretch = math.exp(draw.uniform(*map(math.log, ratio)) / 2)
    return _placed(draw, height * min(1.0, side / stretch), width * min(1.0, side * stretch))


def random_resized_part(
    draw: random.Random, scale: Sequence[float], ratio: Sequence[float], height: int, width: int
) -> Region:
    """Return the crop box of torchvision's RandomResizedCrop, as fractions of the sides.

    A box of random area and aspect ratio is drawn up to ten times, until one fits. After that it is the
    largest central box whose aspect ratio is within the range. Boxes end between whole pixels.

    Args:
        scale: range of the box area as a fraction of the image area.
        ratio: range of the box's width over its height in pixels, drawn in log space.

    Source: torchvision/transforms/transforms.py, RandomResizedCrop.get_params.
    """
    for _ in range(TRIES):
        area_px = height * width * draw.uniform(*scale)
        aspect = math.exp(draw.uniform(*map(math.log, ratio)))
        rows, columns = round(math.sqrt(area_px / aspect)), round(math.sqrt(area_px * aspect))
        if 0 < rows <= height and 0 < columns <= width:
            top, left = draw.randint(0, height - rows), draw.randint(0, width - columns)
            break
    else:
        rows, columns = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
        top, left = (height - rows) // 2, (width - columns) // 2
    return Region(top / height, left / width, (top + rows) / height, (left + columns) / width)


def _placed(draw: random.Random, height: float, width: float) -> Region:
    """Return a box of this size, as fractions of the sides, anywhere in the image."""
    top, left = draw.uniform(0, 1 - height), draw.uniform(0, 1 - width)
    return Region(top, left, top + height, left + width)


def recoloured(
    image_HWC: np.ndarray,
    brightness: float,
    contrast: float,
    saturation: float,
    levels: float = 0.0,
) -> np.ndarray:
    """Apply the three factors of torchvision's ColorJitter, in this order, to a uint8 image.

    All are linear, so one matrix applies them with a single rounding and clipping. A factor of 1
    changes nothing. Afterwards grey levels are added.
    """
    if brightness == contrast == saturation == 1.0 and not levels:
        return image_HWC
    mixed = saturation * np.eye(3) + (1 - saturation) * LUMA  # blend each channel with grey
    mean_grey = LUMA @ cv2.mean(image_HWC)[:3]
    offset = np.full((3, 1), (1 - contrast) * brightness * mean_grey + levels)
    return cv2.transform(image_HWC, np.hstack([contrast * brightness * mixed, offset]))


class Distortions:
    """Draw and apply the config's distortions except flips, colours and boxes (see `Augment`).

    A pure function of (image, seed). The transforms apply in this order.
    """

    def __init__(self, config: AugmentConfig):
        steps: list[A.BasicTransform] = []
        if config.auto:
            steps.append(LearnedPolicy(AutoAugmentPolicy(config.auto), p=1.0))
        if config.affine:  # one map for all three transforms, so that pixels are interpolated once
            steps.append(
                A.Affine(
                    scale=(1 - config.zoom, 1 + config.zoom),
                    keep_ratio=True,
                    translate_percent=(-config.shift, config.shift),
                    rotate=(-config.rotate_deg, config.rotate_deg),
                    border_mode=BORDERS[config.affine_border],
                    fill=0,
                    p=config.affine,
                )
            )
        if config.hue:
            same, hue = (1.0, 1.0), (-config.hue, config.hue)
            steps.append(A.ColorJitter(same, same, same, hue, p=config.color_share))
        if config.rgb_shift:
            bounds, share = (-config.rgb_shift, config.rgb_shift), config.rgb_shift_share
            share = config.color_share if share is None else share
            steps.append(A.RGBShift(bounds, bounds, bounds, p=share))
        if config.blur:
            steps.append(A.GaussianBlur(sigma_limit=(0.3, 1.5), p=config.blur))
        if config.jpeg:
            steps.append(A.ImageCompression("jpeg", tuple(config.jpeg_quality), p=config.jpeg))
        self.compose = A.Compose(steps)

    def __call__(self, image_HWC: np.ndarray, seed: int) -> np.ndarray:
        """uint8 image (H, W, 3) -> another of the same size."""
        # Not `set_random_seed`: it gives every transform the same numbers, so that all transforms of
        # equal probability would apply together.
        self.compose.set_random_state(np.random.default_rng(seed), random.Random(seed))
        return self.compose(image=image_HWC)["image"]


class LearnedPolicy(A.ImageOnlyTransform):
    """AutoAugment (Cubuk et al., CVPR 2019): two operations of a policy learned on a dataset."""

    def __init__(self, policy: AutoAugmentPolicy, p: float = 1.0):
        super().__init__(p=p)
        self.operations = AutoAugment(policy)

    def get_params(self) -> dict[str, Any]:
        return {"seed": self.py_random.getrandbits(63)}

    def apply(self, img: np.ndarray, seed: int, **_: Any) -> np.ndarray:
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.default_generator.manual_seed(seed)
            return np.array(self.operations(Image.fromarray(img)))


class Augment:
    """Augment one view: `part` draws the crop, calling the object changes the resized pixels.

    Between the two, `at_full_size` distorts the crop before its resize.
    """

    def __init__(self, config: AugmentConfig):
        self.config, self.distortions = config, Distortions(config)

    def part(self, seed: int, height: int, width: int) -> Region:
        """Return the crop of an image of this size in pixels."""
        draw, scale, ratio = random.Random(seed), self.config.crop_scale, self.config.crop_ratio
        if self.config.crop_ratio_of == "absolute":
            return random_resized_part(draw, scale, ratio, height, width)
        if self.config.crop_ratio_of == "square":
            shorter = min(height, width)
            return random_part(draw, scale, ratio, shorter / height, shorter / width)
        return random_part(draw, scale, ratio)

    def at_full_size(self, part_HWC: np.ndarray, seed: int) -> np.ndarray:
        """Distort the uint8 crop (H, W, 3) before its resize, if the config says so and OpenCV can."""
        if not self.config.full_size or max(part_HWC.shape) > MAX_SIDE_PX:
            return part_HWC
        own = random.Random(seed).getrandbits(32)  # independent of the stream in `__call__`
        return self.distortions(np.ascontiguousarray(part_HWC), own)

    def __call__(self, image_HWC: np.ndarray, seed: int) -> np.ndarray:
        """uint8 image (H, W, 3) -> another of the same size."""
        draw = random.Random(seed)
        if draw.random() < self.config.flip:
            image_HWC = cv2.flip(image_HWC, 1)
        image_HWC = self._recoloured(image_HWC, draw)
        if self.config.distorts and not self.config.full_size:
            image_HWC = self.distortions(image_HWC, draw.getrandbits(32))
        if draw.random() < self.config.erase:
            image_HWC = image_HWC.copy()
            for _ in range(self.config.erase_boxes):
                sides = [draw.uniform(*self.config.erase_side) for _ in range(2)]
                erased = _placed(draw, *sides)
                image_HWC[erased.of(*image_HWC.shape[:2])] = COLORS[self.config.erase_color]
        return image_HWC

    def _recoloured(self, image_HWC: np.ndarray, draw: random.Random) -> np.ndarray:
        strengths, levels = self.config.color_strengths, 0.0
        factors = [draw.uniform(max(0.0, 1 - one), 1 + one) for one in strengths]
        if most := self.config.brightness_levels:  # if it is 0, no random number is drawn
            levels = draw.uniform(-most, most)
        if draw.random() >= self.config.color_share:
            factors, levels = [1.0, 1.0, 1.0], 0.0
        if draw.random() < self.config.gray:
            factors[2] = 0.0
        brightness, contrast, saturation = factors
        return recoloured(image_HWC, brightness, contrast, saturation, levels)
