"""Configs of runs of tiny models on toy images."""

from __future__ import annotations

from pathlib import Path

from guie.config.loading import to_yaml
from tiny_runs import TINY_CLIP

STAGES = [
    {"name": "head", "epochs": 0.7, "lr": {"head": 1e-3, "classes": 1e-2}},
    {
        "name": "full",
        "epochs": 1,
        "size_px": 40,
        "sampler": "round_robin",
        "validate_every": "3 steps",
        "lr": {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2},
    },
]


def write_config(path: Path, mix: Path, root: Path, **changes) -> Path:
    config = {
        "name": "t",
        "out": str(path.parent / "runs"),
        "log_every": "1 step",
        "checkpoint_every": "2 steps",
        "data": {"manifest": str(mix), "root": str(root), "workers": 0},
        "model": {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dropout": 0.2}},
        "train": {"batch_size": 32, "augment": {"color": 0.2}},
        "stages": STAGES,
        **changes,
    }
    path.write_text(to_yaml(config))
    return path
