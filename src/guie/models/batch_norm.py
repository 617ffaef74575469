"""Batch normalisation of a backbone: which layers update their statistics, and for which images.

Shapes: C channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from guie.base.errors import UserError
from guie.config.model import BatchNorm


def batch_norms(tower: nn.Module) -> dict[str, _BatchNorm]:
    """Return a model's BatchNorm layers by name."""
    return {name: one for name, one in tower.named_modules() if isinstance(one, _BatchNorm)}


def trained(tower: nn.Module, setting: BatchNorm) -> dict[str, _BatchNorm]:
    """Return the layers that a stage's `batch_norm` trains; the longest name above a layer decides.

    Raises UserError for a name above no BatchNorm layer.
    """
    if setting == "frozen":
        return {}
    named = {"": setting} if isinstance(setting, str) else setting
    found = batch_norms(tower)
    for name in named:
        if not any(is_below(layer, name) for layer in found):
            where = f" in {name!r}" if name else ""
            known = f"it has {', '.join(list(found)[:40])}" if found else "remove batch_norm"
            raise UserError(
                f"batch_norm: {type(tower).__name__} has no batch normalisation{where}; {known}"
            )
    above = {layer: [name for name in named if is_below(layer, name)] for layer in found}
    return {
        layer: found[layer]
        for layer, names in above.items()
        if names and named[max(names, key=len)] != "frozen"
    }


@torch.no_grad()
def share_statistics(tower: nn.Module) -> None:
    """Give every process the first's running statistics of layers in train mode, in one message.

    Each process moves them by its own images, so they would validate different models.
    """
    if not distributed.is_initialized():
        return
    layers = batch_norms(tower).values()
    moving = [layer for layer in layers if layer.training and layer.track_running_stats]
    found: list[Any] = [one for layer in moving for one in (layer.running_mean, layer.running_var)]
    if not found:
        return
    flat = torch.cat([one_C.float() for one_C in found])
    distributed.broadcast(flat, src=0)
    for one_C, value_C in zip(found, flat.split([len(one_C) for one_C in found]), strict=True):
        one_C.copy_(value_C)


def is_below(layer: str, name: str) -> bool:
    """Whether a layer is the named module or inside it; all are inside the module without a name."""
    return not name or f"{layer}.".startswith(f"{name}.")
