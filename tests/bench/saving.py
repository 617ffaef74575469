"""How long training waits for a checkpoint: written beside it, against written and read again in its place.

python tests/bench/saving.py [--model vit_large_patch16_224] [--rounds 3]

A backbone of random weights with AdamW's state, 12 bytes a weight. In place: torch.save, a flush to disk,
and the SHA-256 of the file that is read again. Of a frozen backbone: what it takes to copy and hash its
weights, which is done once a stage and not at each save. Needs 8 bytes of memory more a weight, and the
disk twice the file.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from common import arguments, in_turn, show

from guie.models.pretrained import state_hash
from guie.training.checkpoint import Checkpoints, Identity, TrainState

GB = 1e9


def parts_of(model: str) -> dict[str, Any]:
    """Weights, and what AdamW keeps of each."""
    weights = timm.create_model(model).state_dict()
    moments = {
        number: {"step": torch.tensor(1.0), "exp_avg": weight * 0.5, "exp_avg_sq": weight * 0.25}
        for number, weight in enumerate(weights.values())
    }
    task = {f"embedder.backbone.tower.{name}": weight for name, weight in weights.items()}
    return {"task": task, "optimizer": {"state": moments, "param_groups": []}, "ema": None}


def save_in_place(parts: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        torch.save(parts, file)
        file.flush()
        os.fsync(file.fileno())
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")


def main() -> None:
    args = arguments(__doc__, model="vit_large_patch16_224", rounds=3)
    parts = parts_of(args.model)
    weights = sum(weight.numel() for weight in parts["task"].values())
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), keep=1)

        def beside() -> None:
            checkpoints.save(parts, TrainState(global_step=1), Identity("", ""))

        ways = {
            "in place": lambda: save_in_place(parts, Path(folder) / "in_place.pt"),
            "beside training": beside,
            "until it is written": checkpoints.wait,
            "of a frozen backbone, each save": lambda: state_hash(parts["task"]),
        }
        taken = in_turn(ways, args.rounds)
    rows = [
        (name, np.median(seconds), seconds.min(), seconds.max()) for name, seconds in taken.items()
    ]
    show(
        ["seconds that a save takes", "median", "least", "most"],
        rows,
        f"{args.model}: {weights / 1e6:,.0f} M weights, {12 * weights / GB:.1f} GB a checkpoint",
    )
    waits = taken["in place"] / taken["beside training"]
    print(
        f"\ntraining waits {np.median(waits):.1f} times less ({waits.min():.1f} to {waits.max():.1f})"
    )


if __name__ == "__main__":
    main()
