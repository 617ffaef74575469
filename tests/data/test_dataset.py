"""What is trained is what is scored; a sample is a pure function of its key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import torch
from pictures import FULL_AUGMENT, NO_AUGMENT, SIZES, WHOLE, dataset, jpeg, preprocess
from PIL import Image

from guie.base.errors import UserError
from guie.config.stages import AugmentConfig
from guie.data.augmentation import Augment
from guie.data.dataset import EvalDataset, TrainDataset, as_batch, training_rows
from guie.data.images import Part, open_as_seen, open_part
from guie.data.loader import eval_loader, train_loader
from guie.data.manifest import Manifest, Sidecar
from guie.data.sampling import RankBatches, Sampler
from guie.models.preprocess import Preprocess


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


@pytest.mark.parametrize("fit", ["squash", "pad", "crop"])
def test_training_and_scoring_see_the_same_pixels(manifest: Manifest, fit: str) -> None:
    """Without augmentation the two pipelines agree within the rounding to 8 bits, on odd sizes too.

    Where an image is only shrunk: 0.35 grey levels in the mean, 12 at the most, on noise, where the
    filter overshoots most. Else half a level.
    """
    train = dataset(manifest, NO_AUGMENT, fit)
    files = [manifest.file(path) for path in manifest.table["image_path"]]
    scored = EvalDataset(files, preprocess(fit))
    grey = preprocess(fit).std[0]
    for row, (width, height) in enumerate(SIZES):
        sample, (image, shape) = train[(0, 0, row)], scored[row]
        apart = (preprocess(fit).normalised(sample["image"][None])[0] - image).abs() * grey
        shrinks = preprocess(fit).shrinks(height, width)
        assert apart.mean() <= 0.35, (width, height)
        assert apart.max() <= (12.0 if shrinks else 0.501), (width, height)
        assert torch.equal(sample["shape"], shape)
        expected = torch.tensor([height / width, height / 224, width / 224])
        torch.testing.assert_close(shape, expected)


def test_an_image_of_the_networks_size_is_trained_on_as_it_is(manifest: Manifest) -> None:
    image = np.asarray(open_as_seen(manifest.file("3.png")))
    for fit in ("squash", "pad", "crop"):
        seen = dataset(manifest, NO_AUGMENT, fit)[(0, 0, 3)]["image"]
        assert np.array_equal(seen.permute(1, 2, 0), image)


def test_distorted_before_the_resize(tmp_path: Path) -> None:
    """All pixels of a JPEG that would have been decoded small, and then no more after it."""
    file = jpeg(tmp_path / "large.jpg", size=(640, 480))
    table = pd.DataFrame({"image_path": [file.name], "label": ["d/c"]})
    config = AugmentConfig(
        crop_scale=[1.0, 1.0], crop_ratio=[1.0, 1.0], rgb_shift=90.0, color_share=1.0
    )
    early = config.model_copy(update={"full_size": True})
    seen: list[tuple[int, ...]] = []

    class Noted(Augment):
        def at_full_size(self, part_HWC: np.ndarray, seed: int) -> np.ndarray:
            seen.append(part_HWC.shape)
            return super().at_full_size(part_HWC, seed)

    for augment in (config, early):
        train = TrainDataset(table, ["d/c"], tmp_path, Noted(augment), preprocess(), (0,))
        plain = Augment(NO_AUGMENT)
        known = TrainDataset(table, ["d/c"], tmp_path, plain, preprocess(), (0,))[(0, 0, 0)]
        shift = train[(0, 0, 0)]["image"].float() - known["image"]
        assert shift.abs().mean() > 5  # once, wherever
    assert seen == [(60, 80, 3), (480, 640, 3)]
    pixels = np.full((4, 4, 3), 100, np.uint8)
    late, soon = Augment(config), Augment(early)
    assert (late.at_full_size(pixels, 3) == pixels).all() and (late(pixels, 3) != pixels).any()
    assert (soon.at_full_size(pixels, 3) != pixels).any() and (soon(pixels, 3) == pixels).all()
    long = np.zeros((1, 40_000, 3), np.uint8)  # OpenCV would not warp it
    assert soon.at_full_size(long, 3) is long


@pytest.mark.parametrize("name, grey_levels", [("china.jpg", 3.0), ("flower.jpg", 1.5)])
def test_photographs_decoded_small_look_as_they_are_scored(name: str, grey_levels: float) -> None:
    """In the mean; the roofs of the first are as much detail as a photograph has."""
    photos = Path(sklearn.datasets.__file__).parent / "images"
    rows = pd.DataFrame({"image_path": [name], "label": ["l"]})
    for size_px, width in ((213, 640), (140, 320), (106, 320), (70, 160)):
        network = Preprocess(size_px, [0.5] * 3, [0.5] * 3)
        train = TrainDataset(rows, ["l"], photos, Augment(NO_AUGMENT), network, (0, 0))
        opened, _ = open_part(photos / name, WHOLE, train._enough)
        assert opened.shape[1] == width
        scored = EvalDataset([photos / name], network)[0][0]
        seen = network.normalised(train[(0, 0, 0)]["image"][None])[0]
        assert 127.5 * (seen - scored).abs().mean() < (grey_levels if width < 640 else 0.35)


@pytest.mark.parametrize("fit", ["squash", "pad", "crop"])
def test_augmented_views_of_any_size_become_the_networks_input(manifest: Manifest, fit) -> None:
    train = dataset(manifest, FULL_AUGMENT, fit)
    for row in range(len(SIZES)):
        for step in range(5):
            image = train[(step, 0, row)]["image"]
            assert image.shape == (3, 32, 32) and torch.isfinite(image).all()


def test_a_sample_depends_on_its_key_alone(manifest: Manifest) -> None:
    one, two = dataset(manifest, FULL_AUGMENT), dataset(manifest, FULL_AUGMENT)
    first = one[(3, 1, 6)]["image"]
    two[(0, 0, 5)]  # draws in between
    assert torch.equal(two[(3, 1, 6)]["image"], first)
    assert not torch.equal(one[(4, 1, 6)]["image"], first)
    assert not torch.equal(one[(3, 2, 6)]["image"], first)


def test_the_number_of_workers_changes_nothing(manifest: Manifest) -> None:
    train = dataset(manifest, FULL_AUGMENT)
    sampler = Sampler(manifest.table["domain"], "mixed", 4, (0, 0))
    batches = RankBatches(sampler, 0, 3, 0, 1)
    alone = list(train_loader(train, batches, workers=0))
    shared = list(train_loader(train, batches, workers=2))
    for a, b in zip(alone, shared, strict=True):
        assert torch.equal(a.images_BCHW, b.images_BCHW) and torch.equal(a.label_B, b.label_B)


def test_iterating_leaves_the_global_stream_alone(manifest: Manifest) -> None:
    files = [manifest.file(path) for path in manifest.table["image_path"]]
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    list(eval_loader(EvalDataset(files, preprocess()), [range(len(files))], workers=0))
    assert torch.equal(torch.rand(1), expected)


def test_as_batch_is_what_the_scorer_hands_over() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    batch = as_batch(image)
    assert batch.shape == (1, 3, 2, 4) and batch.dtype == torch.uint8
    assert batch[0, 2, 1, 3] == image[1, 3, 2]


def test_the_part_says_nothing_about_the_pixels(manifest: Manifest) -> None:
    """Both draw from generators of the same kind: of one seed, small parts would all be flipped."""
    train, seeds = dataset(manifest, FULL_AUGMENT), []

    class Noted(Augment):
        def part(self, seed: int) -> Part:
            seeds.append(seed)
            return super().part(seed)

        def __call__(self, image: np.ndarray, seed: int) -> np.ndarray:
            seeds.append(seed)
            return super().__call__(image, seed)

    train.augment = Noted(FULL_AUGMENT)
    for step in range(3):
        train[(step, 0, 5)]
    assert len(set(seeds)) == 6


def test_labels_and_domains_are_checked(manifest: Manifest) -> None:
    assert len(training_rows(manifest, ["d"])) == len(SIZES)
    with pytest.raises(UserError, match="unknown domains x; known: d"):
        training_rows(manifest, ["x"])
    several = manifest.table.assign(label="d/a|d/b")
    with pytest.raises(UserError, match="several labels"):
        training_rows(Manifest(several, manifest.root, manifest.path, Sidecar()))
