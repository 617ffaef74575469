"""Blends of two training images: how often, how strong, and which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pictures import NO_AUGMENT, preprocess
from PIL import Image

from guie.config.stages import AugmentConfig
from guie.data.augmentation import Augment
from guie.data.dataset import TrainDataset
from guie.evaluation.frozen import _view_caches

WHITES = 9
DRAWS = 600


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One black image, 0.png, and nine white ones."""
    root = tmp_path_factory.mktemp("images")
    for number in range(1 + WHITES):
        Image.new("L", (40, 30), 255 if number else 0).save(root / f"{number}.png")
    return root


def blended(root: Path, mixup: float, images: int = 1 + WHITES) -> TrainDataset:
    rows = pd.DataFrame({"image_path": [f"{n}.png" for n in range(images)], "label": "d/c"})
    augment = NO_AUGMENT.model_copy(update={"mixup": mixup})
    return TrainDataset(rows, ["d/c"], root, Augment(augment), preprocess(), seed=(0, 0))


def test_blends_are_as_many_and_as_strong_as_asked(root: Path) -> None:
    """Of black with white: half the views times nine tenths of the partners, at weights from 0 to 1."""
    black = blended(root, mixup=0.5)
    views = [black[step, 0, 0]["image"] for step in range(DRAWS)]
    assert all((view == view[0, 0, 0]).all() for view in views)  # over the whole of both
    levels = np.array([int(view[0, 0, 0]) for view in views])
    assert np.mean(levels > 0) == pytest.approx(0.5 * 0.9, abs=0.06)
    quartiles = np.quantile(levels[levels > 0], [0.25, 0.5, 0.75])
    assert quartiles == pytest.approx([64, 128, 191], abs=25)


def test_a_blend_is_a_function_of_its_key(root: Path) -> None:
    always = blended(root, mixup=1.0)
    keys = [(step, position, 0) for step in range(4) for position in range(4)]
    first = [always[key]["image"] for key in keys]
    assert all(
        torch.equal(image, always[key]["image"]) for key, image in zip(keys, first, strict=True)
    )
    assert len({int(image[0, 0, 0]) for image in first}) > 10


def test_a_view_that_is_not_blended_is_what_it_was(root: Path) -> None:
    """Its part and pixels are drawn as without; the label is the image's own."""
    config = AugmentConfig(flip=0.5, color=0.3, erase=0.5)
    with_blends = config.model_copy(update={"mixup": 0.5})
    plain, mixed = blended(root, 0.0), blended(root, 0.5)
    plain.augment, mixed.augment = Augment(config), Augment(with_blends)
    pairs = [(plain[step, 3, 1], mixed[step, 3, 1]) for step in range(100)]
    same = np.mean([torch.equal(one["image"], other["image"]) for one, other in pairs])
    assert 0.35 < same < 0.75
    assert all(other["label"] == 0 and other["row"] == 1 for _, other in pairs)


def test_features_of_blends_are_not_taken_for_those_of_other_images(
    root: Path, tmp_path: Path
) -> None:
    """Which image shines through a view depends on all that are there; a plain view on none."""

    def folder(mixup: float, images: int) -> Path:
        return _view_caches({}, blended(root, mixup, images), 1, tmp_path)[0].folder

    assert folder(0.5, 10) != folder(0.5, 9)
    assert folder(0.0, 10) == folder(0.0, 9)
