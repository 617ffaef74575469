"""Which parameter learns how fast: rates and weight decay by part, by block, by depth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from guie.base.errors import UserError
from guie.config.stages import LearningRates, OptimizerConfig, StageConfig
from guie.training.tasks import Task

# Names in timm's and open_clip's towers of what comes after the last block.
TOP = {
    *("norm", "fc_norm", "ln_post", "proj", "attn_pool", "head", "conv_head", "bn2"),
    *("ln_final", "text_projection", "logit_scale", "logit_bias"),  # of a whole CLIP
}


class Named(NamedTuple):
    """A parameter, its part of the task, and its name within that."""

    part: str
    name: str
    parameter: nn.Parameter


def named_parameters(task: Task) -> Iterator[Named]:
    """All parameters of a task, by its parts. Raises ValueError where one stands in none."""
    found = set()
    for part, parameters in task.parts().items():
        for name, parameter in parameters.items():
            found.add(parameter)
            yield Named(part, name, parameter)
    for name, parameter in task.named_parameters():
        if parameter not in found:
            raise ValueError(f"parameter {name} belongs to none of {list(task.parts())}")


def block_of(name: str) -> int | None:
    """Number of the transformer block or stage that a parameter belongs to; None outside of them."""
    match = re.search(r"(?:^|\.)(?:blocks|resblocks|layers|stages)\.(\d+)\.", name)
    return int(match[1]) if match else None


def freeze(task: Task, rates: LearningRates) -> None:
    """Parts and blocks with learning rate 0 get no gradients in this stage, nor does what is idle."""
    idle = task.idle()
    for named in named_parameters(task):
        named.parameter.requires_grad_(_rate(named, rates) > 0 and named.parameter not in idle)


def refuse_unknown_blocks(task: Task, rates: LearningRates) -> None:
    """Raise UserError if rates are given for a block that the backbone does not have."""
    blocks = _count_blocks(task)
    unknown = [number for number in rates.blocks if number >= blocks]
    if unknown:
        has = f"{blocks} blocks, 0 to {blocks - 1}" if blocks else "no blocks"
        raise UserError(f"lr.blocks: {min(unknown)}: the backbone has {has}")


def build_optimizer(task: Task, stage: StageConfig) -> torch.optim.Optimizer:
    """The stage's optimiser over what is not frozen.

    Biases, norms and other vectors are not decayed, but for `decay_vectors`.

    The backbone's rate falls by `layer_decay` per block, from what stands above the last block, which
    has the whole rate, to what stands before the first (Bao et al., BEiT, ICLR 2022, and its code);
    or it is set by block.

    Raises UserError if nothing is left to train.
    """
    blocks = _count_blocks(task)
    groups: dict[tuple[str, float, float], list[nn.Parameter]] = {}
    for named in named_parameters(task):
        part, name, parameter = named
        if parameter.requires_grad:
            below = blocks + 1 - _height(name, blocks) if part == "backbone" else 0
            peak_lr = _rate(named, stage.lr) * stage.layer_decay**below
            decayed = parameter.ndim > 1 or stage.decay_vectors
            decay = _decay(part, stage) if decayed else 0.0
            groups.setdefault((part, peak_lr, decay), []).append(parameter)
    if not groups:
        raise UserError(f"stage {stage.name}: nothing to train: every part there is has lr 0")
    return _create(
        stage.optimizer,
        [
            {"params": parameters, "part": part, "peak_lr": peak_lr, "weight_decay": decay}
            for (part, peak_lr, decay), parameters in groups.items()
        ],
    )


def _create(config: OptimizerConfig, groups: list[dict]) -> torch.optim.Optimizer:
    unset = 0.0  # the rate is set anew before every step
    match config.name:
        case "adamw":
            return torch.optim.AdamW(groups, lr=unset)
        case "adam":
            return torch.optim.Adam(groups, lr=unset)
        case "sgd":
            return torch.optim.SGD(groups, lr=unset, momentum=config.momentum)


def _decay(part: str, stage: StageConfig) -> float:
    decay = stage.weight_decay
    return decay if isinstance(decay, float) else decay.of(part)


def _rate(named: Named, rates: LearningRates) -> float:
    """The peak rate of a parameter: of its part, or of the nearest block at or below its own."""
    if named.part == "backbone" and not _is_top(named.name):
        block = block_of(named.name) or 0  # the stem goes with the first block
        starts = [start for start in rates.blocks if start <= block]
        if starts:
            return rates.blocks[max(starts)]
    return rates.of(named.part)


def _count_blocks(task: Task) -> int:
    names = [name for part, name, _ in named_parameters(task) if part == "backbone"]
    numbers = [block_of(name) for name in names]
    return 1 + max((number for number in numbers if number is not None), default=-1)


def _height(name: str, blocks: int) -> int:
    """0 for the stem, n + 1 for block n, `blocks + 1` for what comes after the last block."""
    if _is_top(name):
        return blocks + 1
    block = block_of(name)
    return 0 if block is None else block + 1


def _is_top(name: str) -> bool:
    """Does it come after the backbone's last block?"""
    inside = re.split(r"\b(?:backbone|tower|trunk|visual|text)\.", name)[-1]
    return block_of(name) is None and inside.split(".")[0] in TOP
