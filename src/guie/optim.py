"""Stratified learning rates and schedules that are pure functions of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from guie.config.run import LearningRates, StageConfig

PARTS = ("backbone", "head", "classes")


def part_of(name: str) -> str:
    """Which part of a task a parameter belongs to, by its name: backbone, head or classes."""
    for part in PARTS:
        if part in name.split("."):
            return part
    raise ValueError(f"parameter {name} belongs to none of {PARTS}")


def freeze(task: nn.Module, rates: LearningRates) -> None:
    """Parts with learning rate 0 get no gradients in this stage."""
    for name, parameter in task.named_parameters():
        parameter.requires_grad_(getattr(rates, part_of(name)) > 0)


def build_optimizer(task: nn.Module, stage: StageConfig) -> torch.optim.AdamW:
    """AdamW with a group per part; biases, norms and other vectors are not decayed."""
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in task.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((part_of(name), parameter.ndim > 1), []).append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "part": part,
                "peak_lr": getattr(stage.lr, part),
                "weight_decay": stage.weight_decay if decayed else 0.0,
            }
            for (part, decayed), parameters in groups.items()
        ],
        lr=0.0,  # set anew before every step
    )


def set_learning_rates(
    optimizer: torch.optim.Optimizer, stage: StageConfig, step: int, total_steps: int
) -> dict[str, float]:
    """Set every group's rate for this step; return the rate per part, for the log."""
    factor = schedule_factor(stage.schedule, step, total_steps, stage.warmup_steps)
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor
    return {group["part"]: group["lr"] for group in optimizer.param_groups}


def schedule_factor(schedule: str, step: int, total_steps: int, warmup_steps: int) -> float:
    """Learning rate over its peak, in (0, 1], for step 0 .. total_steps - 1."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return 1.0
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * done))
