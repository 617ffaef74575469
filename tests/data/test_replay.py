"""Generic images beside the training images: which, by whom, and that these are left as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from guie.base.errors import UserError
from guie.config.stages import AugmentConfig
from guie.config.training import GenericImagesConfig
from guie.data.augmentation import Augment
from guie.data.dataset import Batch, TrainDataset
from guie.data.loader import load_generic, train_loader, with_generic
from guie.data.manifest import Manifest
from guie.data.sampling import RankBatches, Sampler
from guie.models.preprocess import Preprocess

GENERIC = 5  # images, of one grey each: 10, 20 ... 50; those to train on are darker


def draw(folder: Path, greys: list[int], split: str = "train") -> Path:
    rows = []
    for number, grey in enumerate(greys):
        Image.new("RGB", (40, 30), (grey, grey, grey)).save(folder / f"{grey}.png")
        rows.append((f"{grey}.png", f"{folder.name}/{number % 2}", folder.name, split, "train"))
    table = pd.DataFrame(rows, columns=["image_path", "label", "domain", "split", "role"])
    table.to_csv(folder / "m.csv", index=False)
    return folder / "m.csv"


@pytest.fixture(scope="module")
def generic(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    path = draw(tmp_path_factory.mktemp("generic"), [10 * n for n in range(1, GENERIC + 1)])
    return load_generic(GenericImagesConfig(manifest=str(path)))


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    path = draw(tmp_path_factory.mktemp("train"), list(range(8)))
    return load_generic(GenericImagesConfig(manifest=str(path)))


def stage(train: Manifest, first: int = 0, rank: int = 0, ranks: int = 1, seed: int = 0, flip=0.0):
    """Data set and batches of a stage: batches of 4, steps from `first` to 6."""
    rows = train.table
    whole = {"crop_scale": [1.0, 1.0], "crop_ratio": [1.0, 1.0]}
    augment = Augment(AugmentConfig(**whole, color=0.5 if flip else 0.0))
    preprocess = Preprocess(16, [0.0] * 3, [1 / 255] * 3)
    classes = sorted(rows["label"].unique())
    dataset = TrainDataset(rows, classes, train.root, augment, preprocess, (seed, 0))
    sampler = Sampler(rows["domain"], "mixed", 4, (seed, 0))
    return dataset, RankBatches(sampler, first, 6, rank, ranks)


def greys(images: torch.Tensor) -> list[int]:
    return images.mean(dim=(1, 2, 3)).round().int().tolist()


def batches(train: Manifest, generic: Manifest, workers: int = 0, **where) -> list[Batch]:
    both = with_generic(*stage(train, **where), generic, batch_size=2)
    return list(train_loader(*both, workers))


def test_every_generic_image_comes_once_before_any_comes_twice(
    train: Manifest, generic: Manifest
) -> None:
    made = batches(train, generic)
    assert [b.generic_GCHW.shape for b in made] == [(2, 3, 16, 16)] * 6
    seen = [grey for b in made for grey in greys(b.generic_GCHW)]
    assert sorted(seen[:5]) == sorted(seen[5:10]) == [10, 20, 30, 40, 50]


def test_training_images_are_those_without_generic_ones(train: Manifest, generic: Manifest) -> None:
    alone = list(train_loader(*stage(train, flip=0.5), 0))
    for mine, theirs in zip(batches(train, generic, flip=0.5), alone, strict=True):
        assert theirs.generic_GCHW is None and mine.generic_GCHW is not None
        for name in ("label_B", "row_B", "shapes_B3", "images_BCHW"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name))


@pytest.mark.parametrize("change", [{"workers": 2}, {"first": 2}])
def test_a_batch_depends_on_its_step_alone(
    train: Manifest, generic: Manifest, change: dict[str, int]
) -> None:
    expected = batches(train, generic, flip=0.5)[change.get("first", 0) :]
    for mine, theirs in zip(batches(train, generic, flip=0.5, **change), expected, strict=True):
        assert torch.equal(mine.generic_GCHW, theirs.generic_GCHW)
        assert torch.equal(mine.images_BCHW, theirs.images_BCHW)
    other = batches(train, generic, flip=0.5, seed=1)
    assert any(
        greys(a.generic_GCHW) != greys(b.generic_GCHW)
        for a, b in zip(other, batches(train, generic, flip=0.5), strict=True)
    )


def test_two_processes_share_what_one_would_have(train: Manifest, generic: Manifest) -> None:
    halves = [batches(train, generic, rank=rank, ranks=2, flip=0.5) for rank in range(2)]
    for whole, *parts in zip(batches(train, generic, flip=0.5), *halves, strict=True):
        joined = torch.stack([part.generic_GCHW for part in parts], dim=1).flatten(0, 1)
        assert torch.equal(joined, whole.generic_GCHW)


def test_a_view_is_drawn_anew_each_time(train: Manifest, generic: Manifest) -> None:
    made = np.array([b.generic_GCHW.numpy() for b in batches(train, generic, flip=0.5)])
    assert len({view.tobytes() for view in made.reshape(12, -1)}) > GENERIC


def test_refusals(train: Manifest, generic: Manifest, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="retention.generic.batch_size 3 cannot be shared by 2"):
        with_generic(*stage(train, ranks=2), generic, batch_size=3)
    config = GenericImagesConfig(manifest=str(draw(tmp_path, [1])), split="val")
    with pytest.raises(UserError, match="no rows of split 'val'; it has: train"):
        load_generic(config)
