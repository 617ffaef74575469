"""Learning rates as pure functions of the step, so that a resumed run sees the same."""

from __future__ import annotations

import math

import torch

from guie.config.durations import Duration
from guie.config.stages import Schedule, StageConfig


def set_learning_rates(
    optimizer: torch.optim.Optimizer, stage: StageConfig, step: int, total_steps: int
) -> dict[str, float]:
    """Set every group's rate for this step; return the highest rate per part, for the log."""
    steps_per_epoch = total_steps / stage.epochs
    warmup_steps = round(stage.warmup.steps(steps_per_epoch)) if stage.warmup else 0
    if step < warmup_steps:
        factor = warmup_factor(stage, step, warmup_steps, steps_per_epoch)
    else:
        factor = schedule_factor(stage.schedule, step, total_steps, warmup_steps, steps_per_epoch)
    rates: dict[str, float] = {}
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor
        rates[group["part"]] = max(group["lr"], rates.get(group["part"], 0.0))
    return rates


def schedule_factor(
    schedule: Schedule,
    step: int,
    total_steps: int,
    warmup_steps: int = 0,
    steps_per_epoch: float = 1.0,
) -> float:
    """Learning rate over its peak, in [0, 1], for step warmup_steps .. total_steps - 1.

    Stairs end at the nearest step.

    Args:
        steps_per_epoch: need not be whole; for the schedules that count in epochs.
    """
    gone: float = step - warmup_steps
    match schedule.name:
        case "constant":
            return 1.0
        case "cosine":
            if schedule.every:
                gone = _stair_start(step - warmup_steps, schedule.every, steps_per_epoch)
            done = gone / max(1, total_steps - warmup_steps)
            return schedule.end + (1 - schedule.end) * 0.5 * (1 + math.cos(math.pi * done))
        case "step":
            drops = sum(step + 0.5 >= epoch * steps_per_epoch for epoch in schedule.epochs)
            return schedule.factor**drops
        case "exponential":
            return schedule.factor ** schedule.every.times_in(step - warmup_steps, steps_per_epoch)


def warmup_factor(
    stage: StageConfig, step: int, warmup_steps: int, steps_per_epoch: float
) -> float:
    """Learning rate over its peak, for step 0 .. warmup_steps - 1: a line from `warmup_start` to 1."""
    gone: float = step
    if stage.warmup_every:
        gone = _stair_start(step, stage.warmup_every, steps_per_epoch)
    start = stage.warmup_start
    return start + (1 - start) * (gone + 1) / (warmup_steps + 1)


def _stair_start(steps: int, stair: Duration, steps_per_epoch: float) -> float:
    """Where the stair begins that so many steps have led to, in steps; need not be whole."""
    return stair.times_in(steps, steps_per_epoch) * stair.steps(steps_per_epoch)
