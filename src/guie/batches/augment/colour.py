"""Brightness, contrast and saturation of an image, changed at once."""

from __future__ import annotations

import cv2
import numpy as np

LUMA = np.array([0.299, 0.587, 0.114])  # of RGB, ITU-R BT.601


def recoloured(
    image_HWC: np.ndarray,
    brightness: float,
    contrast: float,
    saturation: float,
    levels: float = 0.0,
) -> np.ndarray:
    """The three factors of torchvision's ColorJitter, in this order, on a uint8 image.

    All are linear, so that one matrix does, and rounds and clips once; 1 changes nothing.

    Args:
        levels: grey levels that are added after them.
    """
    if brightness == contrast == saturation == 1.0 and not levels:
        return image_HWC
    mixed = saturation * np.eye(3) + (1 - saturation) * LUMA  # every row adds its share of grey
    mean_grey = LUMA @ cv2.mean(image_HWC)[:3]
    offset = np.full((3, 1), (1 - contrast) * brightness * mean_grey + levels)
    return cv2.transform(image_HWC, np.hstack([contrast * brightness * mixed, offset]))
