"""Batches taken ahead, their faults, and images that a loader only decodes: the same bits as in a loader."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from pictures import SIZES, jpeg, preprocess
from PIL import Image
from torch import nn

from guie.base.errors import UserError
from guie.data import images, loader
from guie.data.dataset import EvalDataset
from guie.data.images import open_as_host, with_retries
from guie.data.loader import Prefetcher, RawImages, eval_loader, packed
from guie.data.manifest.companions import Box
from guie.data.preprocess import Inputs, ViewSpec
from guie.rows import embedding
from guie.rows.embedding import embed_dataset
from kills import children_of

BATCHES = [range(0, 4), range(4, 8), range(8, 12)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for number in range(12):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
    return [tmp_path / f"{number}.png" for number in range(12)]


def ahead(files: list[Path], workers: int) -> Prefetcher:
    return Prefetcher(eval_loader(EvalDataset(files, nn.Identity()), BATCHES, workers))


def reds(batch: list) -> list[int]:
    """What tells the images of a batch apart."""
    return batch[0][:, 0, 0, 0].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_one_line_and_known_a_batch_ahead(files, workers) -> None:
    files[9].write_bytes(files[9].read_bytes()[:40])
    batches = ahead(files, workers)
    assert reds(next(batches)) == [0, 1, 2, 3] and batches.fault is None
    assert reds(next(batches)) == [4, 5, 6, 7]
    assert isinstance(batches.fault, UserError)
    with pytest.raises(UserError) as caught:
        next(batches)
    assert str(caught.value).startswith(f"{files[9]}: not a readable image")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_is_away_for_a_moment_is_waited_for(files, workers, monkeypatch, capfd) -> None:
    monkeypatch.setattr(images, "WAITS_S", (0.05,) * 100)
    away = files[2].rename(files[2].with_suffix(".away"))
    threading.Timer(0.5, lambda: away.rename(files[2])).start()
    assert [red for batch in ahead(files, workers) for red in reds(batch)] == list(range(12))
    if workers == 0:  # else a busy machine may begin after that half second
        assert f"{files[2]}: no such image; trying again in 0.05 s" in capfd.readouterr().err


def test_a_file_that_is_gone_costs_its_waits_once_and_a_damaged_one_none(files, monkeypatch, capfd):
    monkeypatch.setattr(images, "WAITS_S", (0.05, 0.1, 0.2))
    files[4].write_bytes(b"GIF89a")
    with pytest.raises(UserError, match="not a readable image"):
        with_retries(lambda: open_as_host(files[4]))
    assert capfd.readouterr().err == ""
    for file in files[:4]:
        file.unlink()
    batches = ahead(files, 0)
    assert capfd.readouterr().err.count("; trying again in ") == len(images.WAITS_S)
    assert "0.png: no such image" in str(batches.fault)


def test_a_worker_that_the_system_kills_ends_the_loader_between_batches(files) -> None:
    before = signal.getsignal(signal.SIGCHLD)
    batches = ahead(files * 100, 1)
    assert signal.getsignal(signal.SIGCHLD) == before  # nothing is raised in the middle of a step
    os.kill(children_of(os.getpid())[-1], signal.SIGKILL)
    with pytest.raises(UserError, match="a process that loads images died"):
        for _ in range(len(BATCHES)):
            next(batches)
            time.sleep(0.1)
        raise AssertionError("all batches had been loaded before the kill")


HALF = (0.5, 0.5, 0.5)
LOOKS = Inputs([ViewSpec(32, HALF, HALF), ViewSpec(20, HALF, HALF, "pad", part=0.8, flip=True)])


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Twenty images: every odd size twice, and photographs."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number, (width, height) in enumerate([*SIZES, *SIZES]):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    for number in range(14, 20):
        jpeg(folder / f"{number}.jpg", size=(300 + number % 2, 200))
    return sorted(folder.iterdir())


@pytest.mark.parametrize("large_bytes", [10**9, 30_000, 0])
@pytest.mark.parametrize("fit", ["squash", "pad", "pad on black", "crop", "views"])
def test_a_batch_is_that_of_a_loader(odd_files, fit, large_bytes, monkeypatch):
    monkeypatch.setattr(loader, "LARGE_BYTES", large_bytes)
    made_by = LOOKS if fit == "views" else preprocess(fit)
    boxes = [None, None, Box(2, 3, 300, 250), *[None] * 17]
    dataset = EvalDataset(odd_files, made_by, boxes)
    raw = packed([RawImages(dataset)[n] for n in range(len(odd_files))])
    sizes = [dataset.pixels(n).nbytes for n in range(len(odd_files))]
    assert len(raw.pixels_N) == sum(size for size in sizes if size <= large_bytes)
    inputs, shapes_B3 = raw.prepared(made_by)
    expected = [dataset[n] for n in range(len(odd_files))]
    assert torch.equal(inputs, torch.stack([one for one, _ in expected]))
    assert torch.equal(shapes_B3, torch.stack([shape for _, shape in expected]))


class Channels(torch.nn.Module):
    """The mean of each channel, and the shape of the original."""

    dim = 6

    def forward(self, images_BCHW: torch.Tensor, shapes_B3: torch.Tensor) -> torch.Tensor:
        return torch.cat([images_BCHW.mean((2, 3)), shapes_B3], dim=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_embeddings_do_not_depend_on_who_preprocesses(odd_files, workers, monkeypatch):
    monkeypatch.setattr(embedding, "PIECE", 3)
    dataset, settings = EvalDataset(odd_files, preprocess("pad")), {"batch_size": 7}
    expected = embed_dataset(Accelerator(), Channels(), dataset, workers=0, **settings)
    monkeypatch.setattr(embedding, "PREPROCESSING", ("cpu",))

    def refused(self, index: int) -> None:
        raise AssertionError("a loader preprocessed")

    monkeypatch.setattr(EvalDataset, "__getitem__", refused)
    found = embed_dataset(Accelerator(), Channels(), dataset, workers=workers, **settings)
    assert np.array_equal(found, expected)
