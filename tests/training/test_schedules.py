"""Learning rates over a stage: pure functions of the step, in epochs or in steps."""

import math

import pytest
import torch
from timm.scheduler import CosineLRScheduler

from guie.config.stages import (
    CosineSchedule,
    LearningRates,
    StageConfig,
)
from guie.training.optim import build_optimizer, schedule_factor, set_learning_rates
from tiny_runs import Parts


def rates_of(total_steps: int, **settings) -> list[float]:
    """The head's rate at every step of a stage, its peak at 1; also in another order of steps."""
    stage = StageConfig(lr=LearningRates(head=1.0), **settings)
    optimizer = build_optimizer(Parts({"head": torch.nn.Linear(2, 2)}), stage)

    def rate(step: int) -> float:
        return set_learning_rates(optimizer, stage, step, total_steps)["head"]

    rates = [rate(step) for step in range(total_steps)]
    assert optimizer.param_groups[0]["lr"] == rates[-1]
    for step in (total_steps // 3, 0, total_steps - 1):
        assert rate(step) == rates[step]
    assert all(0 < one <= 1 and math.isfinite(one) for one in rates)
    return rates


def test_cosine() -> None:
    factors = rates_of(100, epochs=1, warmup="10 steps")
    assert factors[10] == 1.0 and max(factors) == 1.0
    assert all(a < b for a, b in zip(factors[:10], factors[1:11], strict=True))
    assert all(a > b for a, b in zip(factors[10:], factors[11:], strict=False))
    assert 0 < factors[-1] < 0.001
    assert schedule_factor(CosineSchedule(), 55, 100, 10) == pytest.approx(0.5)
    rates = rates_of(1000, epochs=10, schedule={"name": "cosine", "end": 0.05})
    assert rates[0] == 1.0 and rates[500] == pytest.approx(0.05 + 0.95 / 2)
    assert rates[-1] == pytest.approx(0.05, abs=1e-5)


@pytest.mark.parametrize("steps_per_epoch", [10, 7.3, 0.5])
def test_steps_fall_at_the_ends_of_epochs(steps_per_epoch: float) -> None:
    """The challenge's 1st place: six epochs, a tenth of the rate after two and after four."""
    total = round(6 * steps_per_epoch)
    schedule = {"name": "step", "epochs": [2.0, 4.0], "factor": 0.1}
    rates = rates_of(total, epochs=6, schedule=schedule)
    first, second = round(2 * steps_per_epoch), round(4 * steps_per_epoch)
    expected = [1.0] * first + [0.1] * (second - first) + [0.01] * (total - second)
    assert rates == pytest.approx(expected)


def test_steps_count_from_the_start_of_the_stage() -> None:
    schedule = {"name": "step", "epochs": [2.0], "factor": 0.5}
    rates = rates_of(40, epochs=4, warmup="1 epoch", schedule=schedule)
    assert rates[10:] == [1.0] * 10 + [0.5] * 20


def test_exponential_falls_in_stairs_after_the_warmup() -> None:
    """The challenge's 3rd place: up for ten epochs, then by .93 every tenth of an epoch."""
    schedule = {"name": "exponential", "every": "0.1 epochs", "factor": 0.93}
    rates = rates_of(20_000, epochs=20, warmup="10 epochs", schedule=schedule)
    assert rates[:10_000] == pytest.approx([(step + 1) / 10_001 for step in range(10_000)])
    assert rates[10_000:] == pytest.approx([0.93 ** (step // 100) for step in range(10_000)])


def test_durations_are_of_epochs_or_of_steps() -> None:
    in_epochs = rates_of(300, epochs=6, warmup="1.5 epochs")
    assert in_epochs == rates_of(300, epochs=6, warmup="75 steps")
    assert in_epochs[74] < in_epochs[75] == 1.0
    in_steps = rates_of(60, epochs=6, schedule={"name": "cosine", "every": "10 steps"})
    assert in_steps == rates_of(60, epochs=6, schedule={"name": "cosine", "every": "1 epoch"})


def test_a_cosine_by_epoch_is_timms() -> None:
    """The challenge's 5th place: three epochs up from 1e-4 of the peak, then a cosine, in stairs.

    timm's reaches the cosine's end after the last epoch; ours is there with it: 3 epochs of 1,000.
    """
    epochs, steps = 1000, 20
    rates = rates_of(
        epochs * steps,
        epochs=epochs,
        schedule={"name": "cosine", "end": 1e-4, "every": "1 epoch"},
        warmup="3 epochs",
        warmup_start=1e-4,
        warmup_every="1 epoch",
    )
    weight = torch.nn.Parameter(torch.zeros(1))
    theirs = CosineLRScheduler(
        torch.optim.AdamW([weight], lr=1.0),
        t_initial=epochs,
        lr_min=1e-4,
        warmup_t=3,
        warmup_lr_init=1e-4,
        warmup_prefix=True,
    )
    for epoch in range(epochs):
        [ours] = set(rates[epoch * steps : (epoch + 1) * steps])
        theirs.step(epoch)
        near = 0.02 if epoch < 3 else 0.003  # a warm-up of ours is at its peak a step later
        assert ours == pytest.approx(theirs.optimizer.param_groups[0]["lr"], abs=near)


def test_rates_of_the_2nd_place() -> None:
    """XL-H/GUIE-2nd-Place-Solution utils.py:83-92, train.py:120-127: up by batches, down by epochs."""
    epochs, steps = 10, 50
    schedule = {"name": "cosine", "every": "1 epoch"}
    ours = rates_of(
        epochs * steps, epochs=epochs, schedule=schedule, warmup="1 epoch", warmup_start=0.01
    )
    rise = [0.01 * (1 - batch / steps) + batch / steps for batch in range(steps)]
    ahead = [our - their for our, their in zip(ours[:steps], rise, strict=True)]
    assert 0 < min(ahead) and max(ahead) <= 1 / (steps + 1)
    for epoch in range(2, epochs + 1):  # they count from 1, to one epoch more than they train
        their = 0.5 * (1 + math.cos(math.pi * epoch / (epochs + 1)))
        (our,) = set(ours[(epoch - 1) * steps : epoch * steps])
        assert 0 < our - their < 0.18


@pytest.mark.parametrize("name", ["constant", "cosine", "step", "exponential"])
def test_a_stage_of_one_step(name: str) -> None:
    more = {"step": {"epochs": [2.0]}, "exponential": {"factor": 0.9}}.get(name, {})
    assert rates_of(1, epochs=0.01, schedule={"name": name, **more}) == [1.0]
