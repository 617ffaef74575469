"""What is trained is what is scored; a sample is a pure function of its key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from guie.augment import Augment, RandomArea, fitted_size
from guie.config.stages import AugmentConfig
from guie.data import EvalDataset, TrainDataset, as_batch, eval_loader, train_loader, training_rows
from guie.errors import UserError
from guie.images import open_as_seen
from guie.manifest import Manifest, Sidecar
from guie.model.preprocess import Preprocess
from guie.sampling import RankBatches, Sampler

NO_AUGMENT = AugmentConfig(crop_scale=[1.0, 1.0], crop_ratio=[1.0, 1.0])
FULL_AUGMENT = AugmentConfig(flip=0.5, color=0.3, gray=0.3, blur=0.3, erase=0.3)
SIZES = [(1, 1), (1, 300), (300, 1), (32, 32), (90, 40), (40, 90), (257, 131)]  # width, height


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    rows = []
    for number, (width, height) in enumerate(SIZES):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{number}.png")
        rows.append((f"{number}.png", f"d/c{number % 2}", "d", "train", "train"))
    table = pd.DataFrame(rows, columns=["image_path", "label", "domain", "split", "role"])
    return Manifest(table, root, root / "m.csv", Sidecar())


def preprocess(fit: str = "squash") -> Preprocess:
    return Preprocess(32, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4], fit)


def dataset(manifest: Manifest, augment: AugmentConfig, fit: str = "squash") -> TrainDataset:
    classes = sorted(manifest.table["label"].unique())
    return TrainDataset(
        manifest.table,
        classes,
        manifest.root,
        Augment(augment, 32, fit),
        preprocess(fit),
        seed=(0, 0),
    )


@pytest.mark.parametrize("fit", ["squash", "pad", "crop"])
def test_training_and_scoring_see_the_same_pixels(manifest: Manifest, fit: str) -> None:
    """Without augmentation the two pipelines agree, on odd sizes too.

    Exactly where an image is not shrunk; else within the rounding to 8 bits: 0.35 grey levels in
    the mean, 12 at the most, on noise, where the filter overshoots most.
    """
    train = dataset(manifest, NO_AUGMENT, fit)
    files = [manifest.file(path) for path in manifest.table["image_path"]]
    scored = EvalDataset(files, preprocess(fit))
    grey = preprocess(fit).std[0]
    for row, (width, height) in enumerate(SIZES):
        apart = (train[(0, 0, row)]["images"] - scored[row]).abs() * grey
        shrunk = min(fitted_size(height, width, 32, fit)) <= 32 < max(width, height)
        assert apart.mean() <= (0.35 if shrunk else 0.0), (width, height)
        assert apart.max() <= (12.0 if shrunk else 0.0), (width, height)


@pytest.mark.parametrize("exif", [None, 6])
def test_a_large_jpeg_is_decoded_small_but_no_smaller_than_needed(
    tmp_path: Path, exif: int | None
) -> None:
    small = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((960, 640), Image.Resampling.BICUBIC)
    turn = Image.Exif()
    if exif:
        turn[0x0112] = exif
    image.save(tmp_path / "a.jpg", quality=95, exif=turn)
    whole = open_as_seen(tmp_path / "a.jpg")
    for least_px, shorter in ((641, 640), (321, 640), (320, 320), (100, 160), (1, 80)):
        seen = open_as_seen(tmp_path / "a.jpg", least_px)
        assert min(seen.size) == shorter, least_px
        assert (seen.width > seen.height) == (whole.width > whole.height)
        shown = np.asarray(whole.resize(seen.size, Image.Resampling.BOX), dtype=float)
        assert np.abs(shown - np.asarray(seen)).mean() < 2.0


def test_the_smallest_view_is_not_enlarged_after_a_small_decoding() -> None:
    config = AugmentConfig(crop_scale=[0.25, 1.0], crop_ratio=[0.5, 2.0])
    augment = Augment(config, 64, "squash")
    image = np.zeros((augment.least_px, augment.least_px, 3), np.uint8)
    area = augment.compose.transforms[0]
    assert isinstance(area, RandomArea)
    sides = []
    for seed in range(500):
        augment.compose.set_random_seed(seed)
        box = area.get_params_dependent_on_data({"shape": image.shape}, {})["box"]
        sides += [box[2] - box[0], box[3] - box[1]]
    assert 64 <= min(sides) < 76


@pytest.mark.parametrize("fit", ["squash", "pad", "crop"])
def test_augmented_views_of_any_size_become_the_networks_input(manifest: Manifest, fit) -> None:
    train = dataset(manifest, FULL_AUGMENT, fit)
    for row in range(len(SIZES)):
        for step in range(5):
            image = train[(step, 0, row)]["images"]
            assert image.shape == (3, 32, 32) and torch.isfinite(image).all()


def test_a_sample_depends_on_its_key_alone(manifest: Manifest) -> None:
    one, two = dataset(manifest, FULL_AUGMENT), dataset(manifest, FULL_AUGMENT)
    first = one[(3, 1, 6)]["images"]
    two[(0, 0, 5)]  # draws in between
    assert torch.equal(two[(3, 1, 6)]["images"], first)
    assert not torch.equal(one[(4, 1, 6)]["images"], first)
    assert not torch.equal(one[(3, 2, 6)]["images"], first)


def test_the_number_of_workers_changes_nothing(manifest: Manifest) -> None:
    train = dataset(manifest, FULL_AUGMENT)
    sampler = Sampler(manifest.table["domain"], "mixed", 4, (0, 0))
    batches = RankBatches(sampler, 0, 3, 0, 1)
    alone = list(train_loader(train, batches, workers=0))
    shared = list(train_loader(train, batches, workers=2))
    for a, b in zip(alone, shared, strict=True):
        assert torch.equal(a["images"], b["images"]) and torch.equal(a["labels"], b["labels"])


def test_iterating_leaves_the_global_stream_alone(manifest: Manifest) -> None:
    files = [manifest.file(path) for path in manifest.table["image_path"]]
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    list(eval_loader(EvalDataset(files, preprocess()), 4, workers=0))
    assert torch.equal(torch.rand(1), expected)


def test_as_batch_is_what_the_scorer_hands_over() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    batch = as_batch(image)
    assert batch.shape == (1, 3, 2, 4) and batch.dtype == torch.uint8
    assert batch[0, 2, 1, 3] == image[1, 3, 2]


def test_random_area_keeps_its_promises() -> None:
    compose = Augment(AugmentConfig(crop_scale=[0.25, 0.5], crop_ratio=[0.5, 2.0]), 100, "squash")
    image = np.zeros((100, 200, 3), dtype=np.uint8)
    shapes = [compose(image, seed).shape for seed in range(200)]
    areas = np.array([h * w / 20_000 for h, w, _ in shapes])
    ratios = np.array([w / h / 2 for h, w, _ in shapes])
    assert 0.24 < areas.min() < 0.30 and 0.45 < areas.max() < 0.51
    assert 0.49 < ratios.min() < 0.6 and 1.7 < ratios.max() < 2.05
    assert isinstance(compose.compose.transforms[0], RandomArea)


def test_labels_and_domains_are_checked(manifest: Manifest) -> None:
    assert len(training_rows(manifest, ["d"])) == len(SIZES)
    with pytest.raises(UserError, match="unknown domains x; known: d"):
        training_rows(manifest, ["x"])
    several = manifest.table.assign(label="d/a|d/b")
    with pytest.raises(UserError, match="several labels"):
        training_rows(Manifest(several, manifest.root, manifest.path, Sidecar()))
