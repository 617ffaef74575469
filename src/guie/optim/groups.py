"""Which parameter learns how fast: rates and weight decay by part, by block, by depth."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import nn

from guie.config.stages import LearningRates, OptimizerConfig, StageConfig
from guie.errors import UserError

PARTS = ("backbone", "head", "classes")
# Names in timm's and open_clip's towers of what comes after the last block.
TOP = {
    *("norm", "fc_norm", "ln_post", "proj", "attn_pool", "head", "conv_head", "bn2"),
    *("ln_final", "text_projection", "logit_scale", "logit_bias"),  # of a whole CLIP
}


def part_of(name: str) -> str:
    """Which part of a task a parameter belongs to, by its name: backbone, head or classes."""
    for part in PARTS:
        if part in name.split("."):
            return part
    raise ValueError(f"parameter {name} belongs to none of {PARTS}")


def block_of(name: str) -> int | None:
    """Number of the transformer block or stage that a parameter belongs to; None outside of them."""
    match = re.search(r"\.(?:blocks|resblocks|layers|stages)\.(\d+)\.", name)
    return int(match[1]) if match else None


def freeze(task: nn.Module, rates: LearningRates) -> None:
    """Parts and blocks with learning rate 0 get no gradients in this stage.

    Raises UserError for a block that the backbone does not have.
    """
    refuse_unknown_blocks(task, rates)
    for name, parameter in task.named_parameters():
        parameter.requires_grad_(_rate(name, rates) > 0)


def refuse_unknown_blocks(task: nn.Module, rates: LearningRates) -> None:
    """Raise UserError if rates are given for a block that the backbone does not have."""
    blocks = _count_blocks(name for name, _ in task.named_parameters())
    unknown = [number for number in rates.blocks if number >= blocks]
    if unknown:
        has = f"{blocks} blocks, 0 to {blocks - 1}" if blocks else "no blocks"
        raise UserError(f"lr.blocks: {min(unknown)}: the backbone has {has}")


def build_optimizer(task: nn.Module, stage: StageConfig) -> torch.optim.Optimizer:
    """The stage's optimiser over what is not frozen.

    Biases, norms and other vectors are not decayed, but for `decay_vectors`.

    The backbone's rate falls by `layer_decay` per block, from what stands above the last block, which
    has the whole rate, to what stands before the first (Bao et al., BEiT, ICLR 2022, and its code);
    or it is set by block.

    Raises UserError if nothing is left to train.
    """
    blocks = _count_blocks(name for name, _ in task.named_parameters())
    groups: dict[tuple[str, float, float], list[nn.Parameter]] = {}
    for name, parameter in task.named_parameters():
        if parameter.requires_grad:
            part = part_of(name)
            below = blocks + 1 - _height(name, blocks) if part == "backbone" else 0
            peak_lr = _rate(name, stage.lr) * stage.layer_decay**below
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
    return decay if isinstance(decay, float) else getattr(decay, part)


def _rate(name: str, rates: LearningRates) -> float:
    """The peak rate of a parameter: of its part, or of the nearest block at or below its own."""
    part = part_of(name)
    if part == "backbone" and not _is_top(name):
        block = block_of(name) or 0  # the stem goes with the first block
        starts = [start for start in rates.blocks if start <= block]
        if starts:
            return rates.blocks[max(starts)]
    return getattr(rates, part)


def _count_blocks(names: Iterable[str]) -> int:
    numbers = [block_of(name) for name in names if part_of(name) == "backbone"]
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
