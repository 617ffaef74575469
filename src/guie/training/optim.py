"""Optimisers with learning rates by part and block, schedules, and weight averages.

Schedules are pure functions of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from guie.base.errors import UserError
from guie.config.durations import Duration
from guie.config.stages import LearningRates, OptimizerConfig, Schedule, StageConfig
from guie.losses.base import local
from guie.training.tasks.base import Task


class MovingAverage(AveragedModel):
    """A copy of the task that keeps an exponential moving average of its weights and buffers.

    torch's AveragedModel, without its waits for the device at each update.
    """

    module: Task

    def __init__(self, task: Task, decay: float):
        super().__init__(task, use_buffers=True)
        self._average = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Move weights and buffers towards the model's; the first time, copy them."""
        if not self.n_averaged:
            super().update_parameters(model)
            return
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
        ours = chain(self.module.parameters(), self.module.buffers())
        for own, value in zip(ours, chain(model.parameters(), model.buffers()), strict=True):
            averages, values = groups.setdefault((own.device, own.dtype), ([], []))
            averages.append(local(own.detach()))
            values.append(local(value.detach().to(own.device)))
        for averages, values in groups.values():
            # torch would move the number of updates to the device, which an EMA does not use
            self._average(averages, values, 0)
        self.n_averaged += 1


def set_learning_rates(
    optimizer: torch.optim.Optimizer, stage: StageConfig, step: int, total_steps: int
) -> dict[str, float]:
    """Set every group's rate for this step; return the highest rate per part, for the log.

    The warm-up is linear, from `warmup_start` to the peak.
    """
    steps_per_epoch = total_steps / stage.epochs
    warmup_steps = round(stage.warmup.steps(steps_per_epoch)) if stage.warmup else 0
    if step < warmup_steps:
        gone: float = step
        if stage.warmup_every:
            gone = _stair_start(step, stage.warmup_every, steps_per_epoch)
        start = stage.warmup_start
        factor = start + (1 - start) * (gone + 1) / (warmup_steps + 1)
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
    """Return learning rate / peak, in [0, 1], for step warmup_steps .. total_steps - 1.

    Piecewise constant schedules change at the nearest step.

    Args:
        steps_per_epoch: need not be an integer; for the schedules that count in epochs.
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


def _stair_start(steps: int, stair: Duration, steps_per_epoch: float) -> float:
    """Return the step at which the current constant interval begins; need not be an integer."""
    return stair.times_in(steps, steps_per_epoch) * stair.steps(steps_per_epoch)


class Named(NamedTuple):
    """A parameter, its part of the task, and its name within that part."""

    part: str
    name: str
    parameter: nn.Parameter


def named_parameters(task: Task) -> Iterator[Named]:
    """Yield all parameters of a task, by part. Raises ValueError for one that belongs to no part."""
    found = set()
    for part, parameters in task.parts().items():
        for name, parameter in parameters.items():
            found.add(parameter)
            yield Named(part, name, parameter)
    for name, parameter in task.named_parameters():
        if parameter not in found:
            raise ValueError(f"parameter {name} belongs to none of {list(task.parts())}")


def freeze(task: Task, rates: LearningRates) -> None:
    """Freeze parts and blocks with learning rate 0, and unused parameters, for this stage."""
    unused_parameters = task.unused_parameters()
    for named in named_parameters(task):
        named.parameter.requires_grad_(
            _rate(task, named, rates) > 0 and named.parameter not in unused_parameters
        )


def refuse_unknown_blocks(task: Task, rates: LearningRates) -> None:
    """Raise UserError if rates are given for a block that the backbone does not have."""
    blocks = _count_blocks(task)
    unknown = [number for number in rates.blocks if number >= blocks]
    if unknown:
        has = f"{blocks} blocks, 0 to {blocks - 1}" if blocks else "no blocks"
        raise UserError(f"lr.blocks: {min(unknown)}: the backbone has {has}")


def build_optimizer(task: Task, stage: StageConfig) -> torch.optim.Optimizer:
    """Build the stage's optimiser over all parameters that are not frozen.

    Only weight matrices have weight decay, unless `decay_vectors` or `decay_embeddings` is set.

    Modules after the backbone's last block have the full rate. It falls by `layer_decay` per block down
    to the modules before the first (Bao et al., BEiT, ICLR 2022, and its code). Or it is set by block.

    Raises UserError if nothing is left to train, or `layer_decay` is set and the order is unknown.
    """
    blocks = _count_blocks(task)
    if stage.layer_decay != 1:
        _refuse_unknown_order(task)
    spared = _spared_by_library(task)
    decays = stage.weight_decay
    groups: dict[tuple[str, float, float], list[nn.Parameter]] = {}
    for named in named_parameters(task):
        part, name, parameter = named
        if parameter.requires_grad:
            below = blocks + 1 - _height(task, name, blocks) if part == "backbone" else 0
            peak_lr = _rate(task, named, stage.lr) * stage.layer_decay**below
            matrix = _is_weight(named) and parameter not in spared
            wide = parameter.ndim > 1 and (matrix or stage.decay_embeddings)
            decay = decays if isinstance(decays, float) else decays.of(part)
            decay = decay if wide or stage.decay_vectors else 0.0
            groups.setdefault((part, peak_lr, decay), []).append(parameter)
    if not groups:
        raise UserError(f"stage {stage.name}: nothing to train: all parts have lr 0; raise one")
    return create_optimizer(
        stage.optimizer,
        [
            {"params": parameters, "part": part, "peak_lr": peak_lr, "weight_decay": decay}
            for (part, peak_lr, decay), parameters in groups.items()
        ],
    )


def create_optimizer(config: OptimizerConfig, groups: list[dict]) -> torch.optim.Optimizer:
    """Create an optimiser of parameter groups; on CUDA one kernel updates all of a group's parameters."""
    unset = 0.0  # the rate is set before every step
    # Not on CPUs, where the fused kernel rounds differently
    fused = all(p.is_cuda for group in groups for p in group["params"]) or None
    match config.name:
        case "adamw":
            return torch.optim.AdamW(groups, lr=unset, fused=fused)
        case "adam":
            return torch.optim.Adam(groups, lr=unset, fused=fused)
        case "sgd":
            return torch.optim.SGD(groups, lr=unset, momentum=config.momentum, fused=fused)


def _refuse_unknown_order(task: Task) -> None:
    """Raise UserError unless the backbone's blocks are numbered in order, and the rest is in its place."""
    backbone = task.embedder.backbone
    names = [name for part, name, _ in named_parameters(task) if part == "backbone"]
    # The text encoder of a whole CLIP counts by itself
    for is_image in (True, False):
        encoder = [name for name in names if ("visual." in name) == is_image]
        numbers = {
            n: k for n, name in enumerate(encoder) if (k := backbone.block_of(name)) is not None
        }
        if encoder and (not numbers or [*numbers.values()] != sorted(numbers.values())):
            raise UserError(
                "layer_decay: the order of the backbone's blocks is unknown; set it to 1"
            )
        for n, name in enumerate(encoder):
            after = n > max(numbers) and "embed" not in name  # CLIP has its token embedding last
            owned = name.endswith((".weight", ".bias"))  # others are listed before all modules
            if n not in numbers and owned and backbone.is_top(name) != after:
                side = "follows the last" if after else "precedes a"
                raise UserError(f"layer_decay: {name} {side} block, out of place; set it to 1")


def _spared_by_library(task: Task) -> set[nn.Parameter]:
    """Return what a model's library says never to decay, as timm's `no_weight_decay`: bias tables, tokens."""
    spared: set[nn.Parameter] = set()
    for module in task.modules():
        names: set[str] = getattr(module, "no_weight_decay", set)()
        if names:
            spared |= {p for name, p in module.named_parameters() if name in names}
    return spared


def _is_weight(named: Named) -> bool:
    """Return whether a name is of a matrix that multiplies features, not of a token, table or prompt."""
    own = named.name.rsplit(".", 1)[-1]
    parametrized = ".parametrizations.weight." in named.name
    return named.part == "classes" or "weight" in own or "proj" in own or parametrized


def _rate(task: Task, named: Named, rates: LearningRates) -> float:
    """Return a parameter's peak rate: of its part, or of the nearest block at or before its own."""
    backbone = task.embedder.backbone
    if named.part == "backbone" and not backbone.is_top(named.name):
        block = backbone.block_of(named.name) or 0  # the stem goes with the first block
        starts = [start for start in rates.blocks if start <= block]
        if starts:
            return rates.blocks[max(starts)]
    return rates.of(named.part)


def _count_blocks(task: Task) -> int:
    names = [name for part, name, _ in named_parameters(task) if part == "backbone"]
    numbers = [task.embedder.backbone.block_of(name) for name in names]
    return 1 + max((number for number in numbers if number is not None), default=-1)


def _height(task: Task, name: str, blocks: int) -> int:
    """Return 0 for the stem, n + 1 for block n, `blocks + 1` for modules after the last block."""
    backbone = task.embedder.backbone
    if backbone.is_top(name):
        return blocks + 1
    block = backbone.block_of(name)
    return 0 if block is None else block + 1
