"""Stratified learning rates and schedules that are pure functions of the step."""

from __future__ import annotations

import math
import re

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from guie.config.stages import LearningRates, Schedule, StageConfig

PARTS = ("backbone", "head", "classes")
# Names in timm's and open_clip's towers of what comes after the last block.
TOP = {"norm", "fc_norm", "ln_post", "proj", "attn_pool", "head"}


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
    """AdamW with a group per part and depth; biases, norms and other vectors are not decayed.

    The backbone's rate falls by `layer_decay` per block from the last to the first, and once more
    for what stands before the first (Bao et al., BEiT, ICLR 2022, B.1).
    """
    numbers = [block_of(name) for name, _ in task.named_parameters()]
    blocks = 1 + max((number for number in numbers if number is not None), default=-1)
    groups: dict[tuple[str, bool, int], list[nn.Parameter]] = {}
    for name, parameter in task.named_parameters():
        if parameter.requires_grad:
            part = part_of(name)
            below = blocks - _height(name, blocks) if part == "backbone" else 0
            groups.setdefault((part, parameter.ndim > 1, below), []).append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "part": part,
                "peak_lr": getattr(stage.lr, part) * stage.layer_decay**below,
                "weight_decay": stage.weight_decay if decayed else 0.0,
            }
            for (part, decayed, below), parameters in groups.items()
        ],
        lr=0.0,  # set anew before every step
    )


def block_of(name: str) -> int | None:
    """Number of the transformer block or stage that a parameter belongs to; None outside of them."""
    match = re.search(r"\.(?:blocks|resblocks|layers|stages)\.(\d+)\.", name)
    return int(match[1]) if match else None


def _height(name: str, blocks: int) -> int:
    """0 for the stem, n + 1 for block n, `blocks` for what comes after the last block."""
    block = block_of(name)
    if block is not None:
        return min(block + 1, blocks)
    inside = re.split(r"\b(?:backbone|tower|trunk|visual)\.", name)[-1]
    return blocks if inside.split(".")[0] in TOP else 0


def averaged(task: nn.Module, decay: float) -> AveragedModel:
    """A copy of the task that follows its weights by an exponential moving average."""
    return AveragedModel(task, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


def set_learning_rates(
    optimizer: torch.optim.Optimizer, stage: StageConfig, step: int, total_steps: int
) -> dict[str, float]:
    """Set every group's rate for this step; return the highest rate per part, for the log."""
    factor = schedule_factor(stage.schedule, step, total_steps, stage.warmup_steps)
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor
    rates: dict[str, float] = {}
    for group in optimizer.param_groups:
        rates[group["part"]] = max(group["lr"], rates.get(group["part"], 0.0))
    return rates


def schedule_factor(schedule: Schedule, step: int, total_steps: int, warmup_steps: int) -> float:
    """Learning rate over its peak, in (0, 1], for step 0 .. total_steps - 1."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule.name == "constant":
        return 1.0
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * done))
