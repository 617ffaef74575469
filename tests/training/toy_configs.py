"""Configs of runs of tiny models on toy images."""

from pathlib import Path
from typing import Any

from guie.config.loading import to_yaml
from tiny_runs import TINY_CLIP

RATES = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2}
FROZEN = {"head": 1e-3, "classes": 1e-2}
FEW = ["packages", "cars"]  # domains of a short epoch
STAGES = [
    {"name": "head", "epochs": 0.7, "lr": FROZEN},
    {
        "name": "full",
        "epochs": 1,
        "size_px": 40,
        "sampler": "round_robin",
        "validate_every": "3 steps",
        "lr": RATES,
    },
]


def write_config(path: Path, mix: Path, root: Path, **changes: Any) -> Path:
    """Write the config of a run of two stages, logged at every step; `changes` replace its keys."""
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


def sets(*overrides: str) -> list[str]:
    """The words that override keys of a config."""
    return [word for override in overrides for word in ("--set", override)]
