"""One file from which a run goes on: weights, optimiser, counters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from guie.errors import UserError
from guie.files import replacing


@dataclass
class TrainState:
    """Where a run stands. Everything random is a function of these counters and the seed."""

    stage: int = 0
    step: int = 0  # of the stage
    global_step: int = 0
    best_score: float = -1.0
    best_step: int = -1
    stale: int = 0  # validations of this stage without a better score


def save_checkpoint(
    path: Path, task: nn.Module, optimizer: torch.optim.Optimizer, state: TrainState, scaler: Any
) -> None:
    """Write atomically: a kill at any moment leaves the previous checkpoint or this one."""
    saved = {
        "state": asdict(state),
        "task": task.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict() if scaler else None,
    }
    with replacing(path) as temporary:
        torch.save(saved, temporary)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Raises UserError if it is damaged."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{path}: damaged checkpoint: {error}") from None
    return {**saved, "state": TrainState(**saved["state"])}
