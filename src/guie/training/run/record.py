"""What a run leaves behind about itself: config, code version, packages, metrics."""

from __future__ import annotations

import json
import math
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator

from guie.base.errors import UserError
from guie.base.files import append_text, write_json, write_text
from guie.config import RunConfig
from guie.config.composition import COMPOSITION_FILE, CompositionConfig

METRICS_FILE = "metrics.jsonl"
VAL = "val_r_at_1"  # a line of a validation has it
PACKAGES = ("torch", "torchvision", "open_clip_torch", "timm", "albumentations", "accelerate")


def begin_record(folder: Path) -> None:
    """Write `record.json`: command, commit, versions, machine. It shows that a folder is ours."""
    record = {
        "command": sys.argv,
        "git": git_state(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "machine": platform.machine(),
    }
    write_json(folder / "record.json", record)


def is_recorded(folder: Path) -> bool:
    """Whether `begin_record` has written there."""
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or somebody else's
        return False
    return isinstance(record, dict) and {"command", "packages"} <= record.keys()


def write_record(folder: Path, config: RunConfig | CompositionConfig) -> None:
    """Write `record.json` and the resolved config.

    The config is last: a folder that has one is a run that explains itself, whenever a kill fell.
    """
    begin_record(folder)
    file = COMPOSITION_FILE if isinstance(config, CompositionConfig) else "config.yaml"
    write_text(folder / file, yaml.safe_dump(config.model_dump(), sort_keys=False))


def git_state() -> dict[str, Any] | None:
    """Commit and whether the tree differs from it; None outside a repository."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        dirty = bool(_git(here, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "dirty": dirty}


def code_version() -> str:
    """`git_state` in a word: the commit, with `-dirty` where the tree differs from it."""
    state = git_state()
    return "unknown" if state is None else state["commit"] + "-dirty" * state["dirty"]


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class RunLog:
    """`metrics.jsonl`, one JSON object a line in the order of steps, and the same in the trackers.

    Times are left out, so that a resumed run writes the very lines of an uninterrupted one. Only
    the main process writes.

    Args:
        folder: the run's; lines after `step` are dropped there: a resumed run writes them again.
        unscored: the validation after `step` is written again, too.
    """

    def __init__(self, folder: Path, accelerator: Accelerator, step: int, unscored: bool = False):
        self.folder, self.accelerator = folder, accelerator
        self.path = folder / METRICS_FILE
        if accelerator.is_main_process:
            self._rewind(step, unscored)

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        """Append one line. Raises ValueError for NaN and infinity, which are not JSON."""
        if self.accelerator.is_main_process:
            line = json.dumps({"step": step, "stage": stage, **values}, allow_nan=False)
            append_text(self.path, line + "\n")
        self.accelerator.log(dict(values), step=step)

    def _rewind(self, step: int, unscored: bool) -> None:
        lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.exists() else []
        # A kill or a full disk may have cut the last one short.
        written = [(line, json.loads(line)) for line in lines if line.endswith("}")]
        again = (step, True) if unscored else (step + 1, False)
        kept = [line for line, values in written if (values["step"], VAL in values) < again]
        write_text(self.path, "".join(line + "\n" for line in kept))


def prefixed(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """{"head": 1e-3} -> {"lr_head": 1e-3}."""
    return {prefix + key: value for key, value in values.items()}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`. Raises UserError where one is damaged."""
    lines = path.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
    try:
        return [json.loads(line) for line in lines if line]
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: a line is no JSON ({error.doc[:50]!r}); mend or drop it"
        ) from None


def device_name(device: torch.device) -> str:
    """The card's own name, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_gpu_memory_mb(device: torch.device) -> int | None:
    """The most that tensors of this process have held on its card, in MB; None without one."""
    if device.type != "cuda":
        return None
    return math.ceil(torch.cuda.max_memory_allocated(device) / 2**20)


def peak_memory_mb() -> int:
    """The most memory this process, and each of its loader workers, has held, in MB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return math.ceil(kilobytes / 1024)
