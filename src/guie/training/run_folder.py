"""Run folders: opened, locked, never overwritten by accident; config, versions and metrics that a run
records.
"""

from __future__ import annotations

import json
import math
import platform
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from accelerate import Accelerator

from guie.base.errors import UserError
from guie.base.files import append_text, held, replacing, save_arrays, write_json, write_text
from guie.config import RunConfig, load_config
from guie.config.ensemble import COMPOSITION_FILE, FILES, CompositionConfig
from guie.models.weights import PATTERN
from guie.training.checkpoint import FOLDER, UNNAMED, Checkpoints

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


CLASSES = "classes.txt"
IMAGES = "images.npz"  # size and time of change of each training image
STATE = ("size_bytes", "mtime_ns")
LOCK = ".lock"
# Another value gives the same run; of accumulate and on_out_of_memory, but for rounding.
FREE = {
    *("workers", "keep_checkpoints", "checkpoint_every", "copy_frozen"),
    *("accumulate", "on_out_of_memory"),
}
SUMMARY = "summary.json"  # written last: a run that has one is finished
UNFINISHED = ".*.[0-9]*.tmp*"  # a write of `replacing` that a kill cut short
# What a run writes before its first step
FIRST = (
    *(LOCK, UNFINISHED, CLASSES, IMAGES, METRICS_FILE, "config.yaml", "record.json"),
    *("events.out.tfevents.*", "dropped.csv", "dropped_generic.csv"),
)
# What runs and compositions write
WRITTEN = (
    *(*FIRST, SUMMARY, *FILES, FOLDER, PATTERN),
    *(f"{stem}{of}.safetensors" for stem in ("model", "last") for of in ("", "_classes", "_clip")),
)


@contextmanager
def locked(config: RunConfig) -> Iterator[None]:
    """Hold the run's folder; the lock goes with the process, however it ends.

    Raises UserError if another process trains there.
    """
    folder = Path(config.out) / config.name
    said, remedy = f"{folder}: another process trains there", "wait, or --set name=..."
    with held(folder / LOCK, said, remedy):
        yield


def open_run(config: RunConfig, *, resume: bool, overwrite: bool) -> tuple[Path, bool]:
    """Make or reopen the folder of a run; return it, and whether the run is finished already.

    A run killed before its first checkpoint simply starts again, and one that never logged a step
    gives way to any other. Raises UserError if the folder holds another run, an unfinished one that
    nobody asked to resume, or files that no run of ours has written.
    """
    folder = Path(config.out) / config.name
    if overwrite:
        _refuse_overwriting(folder, config)
    if overwrite or _never_stepped(folder):
        _empty(folder)
    refuse_foreign(folder)
    if any((folder / name).exists() for name in FILES):
        raise UserError(f"{folder}: holds a composition; choose another name, or --overwrite it")
    if not (folder / "config.yaml").exists():
        write_record(folder, config)
        return folder, False
    changed = differences(load_config(folder / "config.yaml", RunConfig), config)
    if changed:
        raise UserError(
            f"{folder}: holds a run of another config ({'; '.join(changed)}); choose another name,"
            " or --overwrite it"
        )
    if (folder / SUMMARY).exists():
        return folder, True
    if Checkpoints(folder, 1).paths() and not resume:
        raise UserError(f"{folder}: holds an unfinished run; --resume it, or --overwrite it")
    return folder, False


def refuse_foreign(folder: Path) -> None:
    """Raise UserError where a run or a composition would replace a file that none of ours wrote."""
    if is_recorded(folder) or (folder / "config.yaml").exists():
        return
    for path in sorted(folder.glob("*")):
        replaced = _is_of(path, WRITTEN) and not _is_of(path, (LOCK, UNFINISHED))
        if replaced and not _is_folder(path):
            raise UserError(
                f"{folder}: holds {path.name}, which would be replaced, and no record.json shows that"
                " it is of a run; choose another name, or move it away"
            )


def keep_classes(folder: Path, classes: list[str]) -> None:
    """Write the class list of a new run, a label a line: a class's line is its id.

    Raises UserError where the run was begun with other classes: a resumed run would go on with
    class weights that belong to other classes.
    """
    path = folder / CLASSES
    if not path.exists():
        write_text(path, "".join(f"{label}\n" for label in classes))
        return
    begun = read_classes(folder)
    if begun != classes:
        raise UserError(
            f"{folder}: was begun with {len(begun)} classes, the manifest now has {len(classes)}"
            f" (gone: {_first(set(begun) - set(classes))}; new: {_first(set(classes) - set(begun))});"
            " bring the old manifest back, or --overwrite the run"
        )


def read_classes(folder: Path) -> list[str]:
    """The labels that `keep_classes` wrote, by id.

    Old runs may have a label with another line break than "\\n", which alone ends a line here.
    """
    text = (folder / CLASSES).read_bytes().decode("utf-8")
    return text.removesuffix("\n").split("\n")


def add_to_record(folder: Path, **more: Any) -> None:
    """Write more into `record.json`."""
    path = folder / "record.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | more)


def check_weights(folder: Path, weights: dict[str, Any] | None) -> None:
    """Refuse to go on from other pretrained weights, where training still looks at them.

    Raises UserError.
    """
    begun = json.loads((folder / "record.json").read_text(encoding="utf-8")).get("weights")
    if begun and begun["sha256"] != (weights or {}).get("sha256"):
        raise UserError(
            f"{folder}: retention is towards {begun['file']} with sha256 {begun['sha256']}, and the"
            " file is another now; bring the old one back, or --overwrite the run"
        )


def keep_images(folder: Path, states: pd.DataFrame | None) -> None:
    """Write down size and time of change of a new run's training images, for `check_images`.

    Args:
        states: size_bytes and mtime_ns of each, by image_path; None where nobody has looked.
    """
    if states is not None:
        with replacing(folder / IMAGES) as temporary:
            save_arrays(temporary, **{key: states[key] for key in STATE})


def check_images(folder: Path, states: pd.DataFrame | None) -> None:
    """Refuse to go on with training images that were replaced, by their size and time of change.

    Their content is not compared. Where every time has changed and no size, the images are taken for a
    copy of the same. A run of before 2026-11-25 has written nothing down, and goes on.

    Args:
        states: as of `keep_images`, of the same rows.

    Raises UserError.
    """
    file = folder / IMAGES
    if states is None or not file.exists():
        return
    try:
        with np.load(file) as begun:
            sizes_differ, times_differ = (begun[key] != states[key].to_numpy() for key in STATE)
            first = int((sizes_differ if sizes_differ.any() else times_differ).argmax())
            before = int(begun["size_bytes"][first])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        raise UserError(f"{file}: damaged; remove it, and the images are not compared") from None
    changed = int((sizes_differ | times_differ).sum())
    if not changed:
        return
    if times_differ.all() and not sizes_differ.any():
        print(
            f"{folder}: all {changed:,} training images have another time of change and the same size;"
            " taken for a copy of those that the run was begun with",
            file=sys.stderr,
        )
        return
    what = "its time of change"
    if sizes_differ.any():
        what = f"{before:,} bytes, now {states['size_bytes'].iloc[first]:,}"
    raise UserError(
        f"{folder}: {changed:,} of {len(states):,} training images were changed since the run was begun,"
        f" first {states.index[first]} ({what}); bring the old ones back, or --overwrite the run (if they"
        f" show the same, remove {file} and --resume)"
    )


def finish(folder: Path, summary: dict[str, Any]) -> None:
    """Write `summary.json`, which marks the run as finished."""
    write_json(folder / SUMMARY, summary)


def read_summary(folder: Path) -> dict[str, Any]:
    """`summary.json` of a finished run."""
    return json.loads((folder / SUMMARY).read_text(encoding="utf-8"))


def best_score_text(summary: dict[str, Any]) -> str:
    """Which weights a run keeps as its best, in words."""
    best = summary["best"]
    if best is None:
        return "no val split, so the last weights are kept"
    return f"best val R@1 {best['val_r_at_1']:.3f} at step {best['step']}"


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """`key: old value, now new value` of what differs and would change the run."""
    a, b = _flat(old.model_dump()), _flat(new.model_dump())
    keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    bound = [key for key in keys if key.rpartition(".")[2] not in FREE]
    return [f"{key}: {a.get(key)}, now {b.get(key)}" for key in bound]


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """{"stages": [{"epochs": 1}]} -> {"stages.0.epochs": 1}."""
    items: Iterable[tuple[Any, Any]]
    if isinstance(values, dict):
        items = values.items()
    elif isinstance(values, list) and any(isinstance(value, dict) for value in values):
        items = enumerate(values)
    else:
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in items:
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _refuse_overwriting(folder: Path, config: RunConfig) -> None:
    """Raise UserError where --overwrite would delete what is no run, or what the new run begins with."""
    others = [path for path in sorted(folder.glob("*")) if not _is_of(path, (LOCK, UNFINISHED))]
    if others and not is_recorded(folder):
        raise UserError(
            f"{folder}: holds {others[0].name} and no record.json of a run, and --overwrite deletes"
            " runs alone; choose another name, or delete it yourself"
        )
    for key, value in _flat(config.model_dump()).items():
        begins_with = key.rpartition(".")[2] in ("start_from", "pretrained", "model")
        if begins_with and value and Path(value).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{key}: {value} is what --overwrite would delete; choose another name")


def _never_stepped(folder: Path) -> bool:
    """Whether a run was refused or killed there before its first step, and nothing else lies there."""
    if not (is_recorded(folder) and (folder / "config.yaml").exists()):
        return False
    logged = (folder / METRICS_FILE).exists() and (folder / METRICS_FILE).stat().st_size > 0
    return not logged and all(_is_of(path, FIRST) for path in folder.iterdir())


def _empty(folder: Path) -> None:
    """Remove what runs write; what a user put there stays. Links are removed, never followed.

    The lock stays, which this process holds, and `record.json`, which shows that the folder is ours. A
    kill leaves a run that is not finished, under its config: that goes last.
    """
    checkpoints = folder / FOLDER
    if not checkpoints.is_symlink():
        unfinished = [checkpoints / UNNAMED, *checkpoints.glob(UNFINISHED)]
        for path in (*Checkpoints(folder, 1).paths(), *unfinished):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # there is none, or it holds more
            checkpoints.rmdir()
    (folder / SUMMARY).unlink(missing_ok=True)
    for path in sorted(folder.glob("*"), key=lambda path: path.name in ("config.yaml", *FILES)):
        kept = path.name in (LOCK, "record.json") or _is_folder(path)
        if _is_of(path, WRITTEN) and not kept:
            path.unlink()


def _is_of(path: Path, patterns: Iterable[str]) -> bool:
    return any(map(path.match, patterns))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _first(labels: set[str]) -> str:
    shown = ", ".join(sorted(labels)[:3])
    return f"{shown} and {len(labels) - 3} more" if len(labels) > 3 else shown or "none"
