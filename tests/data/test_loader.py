"""Batches taken ahead, and faults that come through them: of a file, of a worker."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from guie.base.errors import UserError
from guie.data import images, loader
from guie.data.dataset import EvalDataset
from guie.data.images import open_as_host, with_retries
from guie.data.loader import Prefetcher, TrainLoader, eval_loader
from kills import children_of

BATCHES = [range(0, 4), range(4, 8), range(8, 12)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for number in range(12):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
    return [tmp_path / f"{number}.png" for number in range(12)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "WAITS_S", (0.05, 0.1, 0.2))


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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_memory_is_pinned_for_the_device_that_batches_go_to(
    files: list[Path], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not because the machine has a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    dataset = EvalDataset(files, nn.Identity())
    monkeypatch.setattr(loader, "whole_batches", lambda made: made)
    assert eval_loader(dataset, BATCHES, 0, device).pin_memory == (device == "cuda")
    dataset.preprocess = None  # as of a TrainDataset
    assert TrainLoader(dataset, BATCHES, 0, device).loader.pin_memory == (device == "cuda")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_is_away_for_a_moment_is_waited_for(
    files, workers, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setattr(images, "WAITS_S", (0.05,) * 100)
    away = files[2].rename(files[2].with_suffix(".away"))
    back = threading.Timer(0.5, lambda: away.rename(files[2]))
    back.start()
    assert [red for batch in ahead(files, workers) for red in reds(batch)] == list(range(12))
    if workers == 0:  # else a busy machine may begin after that half second
        assert f"{files[2]}: no such image; trying again in 0.05 s" in capfd.readouterr().err


def test_a_file_that_is_gone_costs_its_waits_once(files, impatient, capfd) -> None:
    for file in files[:4]:
        file.unlink()
    batches = ahead(files, 0)
    assert capfd.readouterr().err.count("; trying again in ") == len(images.WAITS_S)
    assert "0.png: no such image" in str(batches.fault)


def test_what_was_read_and_is_damaged_is_not_tried_again(files, impatient, capfd) -> None:
    files[0].write_bytes(b"GIF89a")
    with pytest.raises(UserError, match="not a readable image"):
        with_retries(lambda: open_as_host(files[0]))
    assert capfd.readouterr().err == ""


def test_a_worker_that_the_system_kills_is_told_between_batches(files) -> None:
    before = signal.getsignal(signal.SIGCHLD)
    batches = ahead(files * 100, 1)
    assert signal.getsignal(signal.SIGCHLD) == before  # nothing is raised in the middle of a step
    os.kill(children_of(os.getpid())[-1], signal.SIGKILL)
    with pytest.raises(UserError, match="a process that loads images died"):
        for _ in range(len(BATCHES)):
            next(batches)
            time.sleep(0.1)
        raise AssertionError("all batches had been loaded before the kill")
