"""Optimisers with learning rates by part and block, schedules, and weight averages.

Schedules are pure functions of the step.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
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

STEM, TOP = -1, math.inf  # places before and after the blocks of a backbone


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

    Piecewise constant schedules change at the nearest step. Steps per epoch need not be an integer.
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
    """A parameter of a task."""

    part: str
    name: str  # within the part
    parameter: nn.Parameter
    block: float  # number in the backbone; STEM before the first, TOP after the last and elsewhere


def named_parameters(task: Task) -> Iterator[Named]:
    """Yield all parameters of a task, by part."""
    backbone = task.embedder.backbone
    for part, parameters in task.parts().items():
        for name, parameter in parameters.items():
            block: float = TOP
            if part == "backbone" and not backbone.is_top(name):
                number = backbone.block_of(name)
                block = STEM if number is None else number
            yield Named(part, name, parameter, block)


def _count_blocks(parameters: Iterable[Named]) -> int:
    return 1 + max((int(one.block) for one in parameters if one.block != TOP), default=STEM)


def _rate(named: Named, rates: LearningRates) -> float:
    """Return a parameter's peak rate: of its part, or of the nearest block at or before its own."""
    if named.block != TOP:
        block = max(named.block, 0)  # the stem goes with the first block
        starts = [start for start in rates.blocks if start <= block]
        if starts:
            return rates.blocks[max(starts)]
    return rates.of(named.part)


def freeze(task: Task, rates: LearningRates) -> None:
    """Freeze parts and blocks with learning rate 0, and unused parameters, for this stage."""
    unused = task.unused_parameters()
    for named in named_parameters(task):
        trains = _rate(named, rates) > 0 and named.parameter not in unused
        named.parameter.requires_grad_(trains)


def refuse_unknown_blocks(task: Task, rates: LearningRates) -> None:
    """Raise UserError if rates are given for a block that the backbone does not have."""
    blocks = _count_blocks(named_parameters(task))
    if unknown := [number for number in rates.blocks if number >= blocks]:
        has = f"{blocks} blocks, 0 to {blocks - 1}" if blocks else "no blocks"
        raise UserError(f"lr.blocks: {min(unknown)}: the backbone has {has}")


def build_optimizer(task: Task, stage: StageConfig) -> torch.optim.Optimizer:
    """Build the stage's optimiser over all parameters that are not frozen.

    Modules after the backbone's last block have the full rate. It falls by `layer_decay` per block down
    to the modules before the first (Bao et al., BEiT, ICLR 2022, and its code). Or it is set by block.

    Raises UserError if nothing is left to train, or `layer_decay` is set and the order is unknown.
    """
    parameters = list(named_parameters(task))
    blocks, decays, spared = _count_blocks(parameters), stage.weight_decay, _spared(task)
    if stage.layer_decay != 1:
        _refuse_unknown_order([one for one in parameters if one.part == "backbone"])
    groups: dict[tuple[str, float, float], list[nn.Parameter]] = {}
    for named in parameters:
        part, _, parameter, block = named
        if parameter.requires_grad:
            below = 0 if block == TOP else blocks - int(block)
            peak_lr = _rate(named, stage.lr) * stage.layer_decay**below
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
    """Create an optimiser of parameter groups; their rates are set before every step."""
    # One kernel for a group; not on CPUs, where the fused kernel rounds differently
    fused = all(p.is_cuda for group in groups for p in group["params"]) or None
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum, fused=fused)
    adam = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return adam(groups, lr=0.0, fused=fused)


def _refuse_unknown_order(backbone: Sequence[Named]) -> None:
    """Raise UserError unless the backbone's blocks are numbered in order, and the rest is in its place."""
    # The text encoder of a whole CLIP counts by itself
    for is_image in (True, False):
        encoder = [one for one in backbone if ("visual." in one.name) == is_image]
        numbers = {n: one.block for n, one in enumerate(encoder) if one.block not in (STEM, TOP)}
        if encoder and (not numbers or [*numbers.values()] != sorted(numbers.values())):
            raise UserError(
                "layer_decay: the order of the backbone's blocks is unknown; set it to 1"
            )
        for n, one in enumerate(encoder):
            # CLIP has its token embedding last
            after = n > max(numbers) and "embed" not in one.name
            owned = one.name.endswith((".weight", ".bias"))  # others are listed before all modules
            if n not in numbers and owned and (one.block == TOP) != after:
                side = "follows the last" if after else "precedes a"
                raise UserError(f"layer_decay: {one.name} {side} block, out of place; set it to 1")


def _spared(task: Task) -> set[nn.Parameter]:
    """Return what a model's library says never to decay, as timm's `no_weight_decay`: bias tables, tokens."""
    spared: set[nn.Parameter] = set()
    for module in task.modules():
        names: set[str] = getattr(module, "no_weight_decay", set)()
        spared |= {p for name, p in module.named_parameters() if name in names}
    return spared


def _is_weight(named: Named) -> bool:
    """Return whether it is a matrix that multiplies features, and no token, table or prompt."""
    own = named.name.rsplit(".", 1)[-1]
    parametrized = ".parametrizations.weight." in named.name
    return named.part == "classes" or "weight" in own or "proj" in own or parametrized
