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

import yaml

from guie.config import RunConfig
from guie.files import write_json, write_text

PACKAGES = ("torch", "torchvision", "open_clip_torch", "timm", "albumentations", "accelerate")


def write_record(folder: Path, config: RunConfig) -> None:
    """Write `config.yaml` (resolved) and `record.json` (command, commit, versions, machine)."""
    write_text(folder / "config.yaml", yaml.safe_dump(config.model_dump(), sort_keys=False))
    record = {
        "command": sys.argv,
        "git": git_state(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "machine": platform.machine(),
    }
    write_json(folder / "record.json", record)


def git_state() -> dict[str, Any] | None:
    """Commit and whether the tree differs from it; None outside a repository."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        dirty = bool(_git(here, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "dirty": dirty}


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class MetricsLog:
    """`metrics.jsonl`: one JSON object a line, in the order of steps.

    Times are left out, so that a resumed run writes the very lines of an uninterrupted one.
    """

    def __init__(self, path: Path):
        self.path = path

    def write(self, values: Mapping[str, Any]) -> None:
        """Append one line. Raises ValueError for NaN and infinity, which are not JSON."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values, allow_nan=False) + "\n")

    def rewind(self, step: int) -> None:
        """Drop lines after `step`: a resumed run writes them again."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        write_text(self.path, "".join(line + "\n" for line in kept))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def peak_memory_mb() -> int:
    """The most memory this process, and each of its loader workers, has held, in MB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return math.ceil(kilobytes / 1024)
