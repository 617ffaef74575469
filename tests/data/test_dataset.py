"""What is trained is what is scored; a sample is a pure function of its key; workers share strings."""

import copy
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import torch
from pictures import FULL_AUGMENT, NO_AUGMENT, SIZES, dataset, jpeg, preprocess, whole
from PIL import Image

from guie.base.errors import UserError
from guie.config.stages import AugmentConfig
from guie.config.training import GenericImagesConfig
from guie.data.augmentation import Augment
from guie.data.columns import StringColumn
from guie.data.dataset import Batch, EvalDataset, TrainDataset
from guie.data.images import open_as_seen, open_part
from guie.data.loader import TrainLoader, add_generic, eval_loader, load_generic
from guie.data.manifest import Manifest, Sidecar
from guie.data.preprocess import Preprocess
from guie.data.sampling import RankBatches, Sampler
from guie.rows.store import Store
from guie.rows.views import _drawn


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


@pytest.mark.parametrize("fit", ["squash", "pad", "pad on black", "crop"])
def test_training_and_scoring_see_the_same_pixels(manifest: Manifest, fit: str) -> None:
    """Without augmentation the two pipelines agree within the rounding to 8 bits, on odd sizes too.

    Where an image is only shrunk: 0.35 grey levels in the mean, 12 at the most, on noise, where the
    filter overshoots most. Else half a level.
    """
    train = dataset(manifest, NO_AUGMENT, fit)
    files = [manifest.file(path) for path in manifest.table["image_path"]]
    scored = EvalDataset(files, preprocess(fit))
    grey = preprocess(fit).std[0]
    same = train[(0, 0, 3)]["image"].permute(1, 2, 0)  # of the network's size
    assert np.array_equal(same, np.asarray(open_as_seen(files[3])))
    for row, (width, height) in enumerate(SIZES):
        sample, (image, shape) = train[(0, 0, row)], scored[row]
        apart = (preprocess(fit).normalised(sample["image"][None])[0] - image).abs() * grey
        shrinks = preprocess(fit).shrinks(height, width)
        assert apart.mean() <= 0.35, (width, height)
        assert apart.max() <= (12.0 if shrinks else 0.501), (width, height)
        assert torch.equal(sample["shape"], shape)
        expected = torch.tensor([height / width, height / 224, width / 224])
        torch.testing.assert_close(shape, expected)


def test_distorted_before_the_resize(tmp_path: Path) -> None:
    """All pixels of a JPEG that would have been decoded small, and then no more after it."""
    file = jpeg(tmp_path / "large.jpg", size=(640, 480))
    table = pd.DataFrame({"image_path": [file.name], "label": ["d/c"]})
    late = NO_AUGMENT.model_copy(update={"rgb_shift": 90.0, "color_share": 1.0})
    soon = late.model_copy(update={"full_size": True})
    seen: list[tuple[int, ...]] = []

    class Noted(Augment):
        def at_full_size(self, part_HWC: np.ndarray, seed: int) -> np.ndarray:
            seen.append(part_HWC.shape)
            return super().at_full_size(part_HWC, seed)

    plain, *shifted = (
        TrainDataset(table, ["d/c"], tmp_path, make(config), preprocess(), (0,))[(0, 0, 0)]["image"]
        for make, config in ((Augment, NO_AUGMENT), (Noted, late), (Noted, soon))
    )
    assert all((view.float() - plain).abs().mean() > 5 for view in shifted)  # once, wherever
    assert seen == [(60, 80, 3), (480, 640, 3)]
    pixels, long = np.full((4, 4, 3), 100, np.uint8), np.zeros((1, 40_000, 3), np.uint8)
    assert (Augment(late).at_full_size(pixels, 3) == pixels).all()
    assert (Augment(soon)(pixels, 3) == pixels).all()
    assert Augment(soon).at_full_size(long, 3) is long  # OpenCV would not warp it


@pytest.mark.parametrize("name, grey_levels", [("china.jpg", 3.0), ("flower.jpg", 1.5)])
def test_photographs_decoded_small_look_as_they_are_scored(name: str, grey_levels: float) -> None:
    """In the mean; the roofs of the first are as much detail as a photograph has."""
    photos = Path(sklearn.datasets.__file__).parent / "images"
    rows = pd.DataFrame({"image_path": [name], "label": ["l"]})
    for size_px, width in ((213, 640), (140, 320), (106, 320), (70, 160)):
        network = Preprocess(size_px, [0.5] * 3, [0.5] * 3)
        train = TrainDataset(rows, ["l"], photos, Augment(NO_AUGMENT), network, (0, 0))
        opened, _ = open_part(photos / name, whole, train._enough)
        assert opened.shape[1] == width
        scored = EvalDataset([photos / name], network)[0][0]
        seen = network.normalised(train[(0, 0, 0)]["image"][None])[0]
        assert 127.5 * (seen - scored).abs().mean() < (grey_levels if width < 640 else 0.35)


@pytest.mark.parametrize("fit", ["squash", "pad", "crop"])
def test_views_of_any_size_become_the_networks_input_and_depend_on_the_key(manifest, fit) -> None:
    train, other = dataset(manifest, FULL_AUGMENT, fit), dataset(manifest, FULL_AUGMENT, fit)
    keys = [(step, position, row) for step in (3, 4) for position in (1, 2) for row in range(7)]
    views = {key: train[key]["image"] for key in keys}
    for key in reversed(keys):
        assert views[key].shape == (3, 32, 32)
        assert torch.equal(other[key]["image"], views[key])
    assert len({views[key].numpy().tobytes() for key in keys if key[-1] == 6}) == 4


def test_iterating_leaves_the_global_stream_alone(manifest: Manifest) -> None:
    files = [manifest.file(path) for path in manifest.table["image_path"]]
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    list(eval_loader(EvalDataset(files, preprocess()), [range(len(files))], workers=0))
    assert torch.equal(torch.rand(1), expected)


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
    assert all(torch.equal(views[step], black[step, 0, 0]["image"]) for step in range(20))
    levels = np.array([int(view[0, 0, 0]) for view in views])
    assert np.mean(levels > 0) == pytest.approx(0.5 * 0.9, abs=0.06)
    quartiles = np.quantile(levels[levels > 0], [0.25, 0.5, 0.75])
    assert quartiles == pytest.approx([64, 128, 191], abs=25)


def test_features_of_blends_are_not_taken_for_those_of_other_images(root, tmp_path):
    """Which image shines through a view depends on all that are there; a plain view on none."""

    def folder(mixup: float, images: int) -> Path:
        return Store(tmp_path, {"drawn": _drawn(blended(root, mixup, images))}, np.float16).folder

    assert folder(0.5, 10) != folder(0.5, 9)
    assert folder(0.0, 10) == folder(0.0, 9)


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
    both = stage(train, **where)
    add_generic(*both, generic, batch_size=2)
    return list(TrainLoader(*both, workers))


def test_generic_images_are_added_to_the_same_batches(train: Manifest, generic: Manifest) -> None:
    """Every generic image comes once before any comes twice, in a new view each time."""
    seen = [grey for b in batches(train, generic) for grey in greys(b.generic_GCHW)]
    assert len(seen) == 12 and sorted(seen[:5]) == sorted(seen[5:10]) == [10, 20, 30, 40, 50]
    alone, both = list(TrainLoader(*stage(train, flip=0.5), 0)), batches(train, generic, flip=0.5)
    for mine, theirs in zip(both, alone, strict=True):
        assert theirs.generic_GCHW is None and mine.generic_GCHW.shape == (2, 3, 16, 16)
        for name in ("label_B", "row_B", "shapes_B3", "images_BCHW"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name))
    views = torch.cat([b.generic_GCHW for b in both])
    assert len({view.numpy().tobytes() for view in views}) > GENERIC


@pytest.mark.parametrize("change", [{"workers": 2}, {"first": 2}])
def test_a_batch_depends_on_its_step_alone(train, generic, change):
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
    for together, *parts in zip(batches(train, generic, flip=0.5), *halves, strict=True):
        joined = torch.stack([part.generic_GCHW for part in parts], dim=1).flatten(0, 1)
        assert torch.equal(joined, together.generic_GCHW)


def test_refusals(train: Manifest, generic: Manifest, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="retention.generic.batch_size 3 cannot be shared by 2"):
        add_generic(*stage(train, ranks=2), generic, batch_size=3)
    config = GenericImagesConfig(manifest=str(draw(tmp_path, [1])), split="val")
    with pytest.raises(UserError, match="no rows of split 'val'; it has: train"):
        load_generic(config)


def private_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def read_all(column: StringColumn, answer: Connection) -> None:
    assert column[0]
    before = private_mb()
    for row in range(len(column)):
        column[row]
    answer.send(private_mb() - before)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc/self/smaps_rollup")
def test_a_forked_process_shares_the_rows() -> None:
    """Python strings would take 8 MB of each process here; the interpreter itself takes some."""
    names = [f"train/ö-{n % 100}/image-{n:09d}.jpg" for n in range(100_000)]
    column = copy.deepcopy(StringColumn(np.array(names)))  # as a spawned process gets it
    assert list(column) == names and column[np.int64(2)] == names[2]
    assert column.take(np.array([3, 0, 0])) == [names[3], names[0], names[0]]
    here, there = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=read_all, args=(column, there))
    process.start()
    grown = here.recv()
    process.join()
    assert grown < 5
