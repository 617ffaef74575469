"""Samplers that learn from losses: as a loader reads ahead, and after a resume."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator

import pytest
import torch
from samplers import sampler
from torch.utils.data import DataLoader, Dataset

from guie.base.errors import UserError
from guie.data.sampling import RankBatches, Sampler


class Keys(Dataset):
    """What the sampler asks for, as it is."""

    def __getitem__(self, key: tuple[int, int, int]) -> int:
        return key[2]


def trained_on(one: Sampler, start: int, end: int, workers: int) -> list[list[int]]:
    """The batches of a loop whose losses depend on what it trains on, as a loader serves them."""
    batches = RankBatches(one, start, end, rank=0, ranks=1)
    loader = DataLoader(Keys(), batch_sampler=batches, num_workers=workers)
    seen = []
    for step, rows in enumerate(loader, start):
        seen.append(rows.tolist())
        one.note(step, (rows.double() + 1).log().mean().float())
    return seen


@pytest.fixture
def child_signals() -> Iterator[None]:
    """A plain loader leaves a handler behind that raises in whatever test loses a child next."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("child_signals")
def test_a_loader_that_reads_ahead_changes_nothing() -> None:
    config = {"name": "loss_driven", "period": "5 steps"}
    alone, ahead = sampler(config), sampler(config)
    seen = trained_on(alone, 0, 32, workers=0)
    assert trained_on(ahead, 0, 32, workers=2) == seen
    assert alone.shares(30) != alone.shares(0)
    first, second = sampler(config), sampler(config)
    trained_on(first, 0, 13, workers=0)
    second.load(reloaded(first.state()))
    assert trained_on(second, 13, 32, workers=2) == seen[13:]


def test_a_loader_that_reads_too_far_ahead_is_told_so() -> None:
    short = sampler({"name": "loss_driven", "period": "3 steps"})
    with pytest.raises(UserError, match="step 6 .* above twice data.workers"):
        trained_on(short, 0, 32, workers=2)


def reloaded(state: dict) -> dict:
    """Through a checkpoint, as `guie.training.checkpoint` writes and reads it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_only_a_sampler_that_learns_has_a_state() -> None:
    one = sampler("dataset_size")
    one.note(0, float("nan"))
    one.load({})
    assert one.state() == {} and not one.learns
    assert sampler("loss_driven").learns
    assert one.shares(0) == pytest.approx({"art": 5 / 165, "cars": 120 / 165, "toys": 40 / 165})
