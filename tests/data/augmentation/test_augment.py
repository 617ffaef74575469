"""Crops, colours, erasing: as large and as often as asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as colours

from guie.config.stages import AugmentConfig
from guie.data.augmentation import Augment, recoloured


def test_random_parts_keep_their_promises() -> None:
    augment = Augment(AugmentConfig(crop_scale=[0.25, 0.5], crop_ratio=[0.5, 2.0]))
    parts = np.array([augment.part(seed) for seed in range(500)])
    sides = parts[:, 2:] - parts[:, :2]
    areas, ratios = sides.prod(axis=1), sides[:, 1] / sides[:, 0]
    assert 0.25 <= areas.min() < 0.27 and 0.48 < areas.max() <= 0.5 + 1e-9
    assert 0.5 <= ratios.min() < 0.55 and 1.9 < ratios.max() <= 2 + 1e-9
    assert (parts[:, :2] >= 0).all() and (parts[:, 2:] <= 1 + 1e-9).all()
    assert np.abs((parts[:, :2] / (1 - sides)).mean(axis=0) - 0.5).max() < 0.05


@pytest.mark.parametrize(
    "factors", [(1.2, 1.0, 1.0), (1.0, 0.8, 1.0), (1.0, 1.0, 0.0), (1.1, 0.9, 1.3)]
)
def test_colours_change_as_torchvisions_do(factors: tuple[float, float, float]) -> None:
    """Within the rounding, where nothing is clipped on the way."""
    image = np.random.default_rng(0).integers(70, 180, (9, 13, 3), dtype=np.uint8)
    expected = torch.from_numpy(image).permute(2, 0, 1) / 255
    expected = colours.adjust_brightness(expected, factors[0])
    expected = colours.adjust_contrast(expected, factors[1])
    expected = 255 * colours.adjust_saturation(expected, factors[2]).permute(1, 2, 0).numpy()
    assert np.abs(recoloured(image, *factors) - expected).max() < 0.7


def test_grey_levels_are_added_last() -> None:
    image = np.random.default_rng(0).integers(70, 160, (9, 13, 3), dtype=np.uint8)
    factors = (1.1, 0.9, 1.3)
    added = recoloured(image, *factors, 20.0).astype(int)
    assert set((added - recoloured(image, *factors)).ravel()) == {20}
    assert (
        recoloured(image, 1.0, 1.0, 1.0, -100.0) == np.maximum(image.astype(int) - 100, 0)
    ).all()


def test_every_change_of_pixels_happens_as_often_as_asked() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    views = [Augment(AugmentConfig(flip=0.25))(image, seed) for seed in range(400)]
    assert np.mean([np.array_equal(view, image[:, ::-1]) for view in views]) == approx(0.25)
    views = [Augment(AugmentConfig(gray=0.25))(image, seed) for seed in range(400)]
    assert np.mean([(view == view[..., :1]).all() for view in views]) == approx(0.25)
    views = [Augment(AugmentConfig(color=0.3))(image, seed) for seed in range(400)]
    assert np.mean([not np.array_equal(view, image) for view in views]) == approx(0.8)
    views = [Augment(AugmentConfig(erase=0.25))(image, seed) for seed in range(400)]
    erased = [(view == 128).all(axis=2).mean() for view in views]
    assert np.mean(np.array(erased) > 0.005) == approx(0.25)
    assert max(erased) < 0.17


def approx(share: float) -> object:
    return pytest.approx(share, abs=0.06)  # three standard deviations of 400 draws
