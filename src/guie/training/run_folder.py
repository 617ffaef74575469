"""Open and lock run folders, guard them against overwriting, and record config, versions and metrics."""

import json
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor

from guie.base.errors import UserError
from guie.base.files import (
    append_text,
    held,
    read_json,
    replacing,
    save_arrays,
    write_json,
    write_text,
)
from guie.config import RunConfig, load_config, to_yaml
from guie.config.ensemble import COMPOSITION_FILE, CompositionConfig
from guie.config.training import FREE
from guie.models.weights import CLASS_WEIGHT, PATTERN, read_tensors
from guie.rows.checks import STATE
from guie.training.checkpoint import FOLDER, UNNAMED, Checkpoints

CLASSES = "classes.txt"
CLASS_WEIGHTS = "model_classes.safetensors"
IMAGES = "images.npz"  # size and modification time of each training image
LOCK = ".lock"
METRICS_FILE = "metrics.jsonl"
RECORD = "record.json"
SUMMARY = "summary.json"  # written last: it marks a finished run
UNFINISHED = ".*.[0-9]*.tmp*"  # a write of `replacing` interrupted by a kill
# What a run writes before its first step, besides lock and temporary files
FIRST = (
    *(CLASSES, IMAGES, METRICS_FILE, "config.yaml", RECORD),
    *("events.out.tfevents.*", "dropped.csv", "dropped_generic.csv"),
)
# What runs and ensembles write, without and with these
REPLACED = (
    *(*FIRST, SUMMARY, COMPOSITION_FILE, FOLDER, PATTERN),
    *(f"{stem}{of}.safetensors" for stem in ("model", "last") for of in ("", "_classes", "_clip")),
)
WRITTEN = (*REPLACED, LOCK, UNFINISHED)
PACKAGES = ("torch", "torchvision", "open_clip_torch", "timm", "albumentations", "accelerate")
SHOWN_BYTES = 50  # of a damaged line
VAL = "val_r_at_1"  # key that marks a validation's line


def begin_record(folder: Path, **more: Any) -> None:
    """Write `record.json`: command, commit, versions, machine, more. It marks the folder as ours."""
    packages = {name: metadata.version(name) for name in PACKAGES}
    known: dict[str, Any] = {"command": sys.argv, "git": git_state()}
    known |= {"python": platform.python_version(), "packages": packages}
    known |= {"machine": platform.machine(), **more}
    write_json(folder / RECORD, known)


def read_record(folder: Path) -> dict[str, Any]:
    """Return what `begin_record` wrote to the folder. Raises UserError if that is damaged."""
    path, remedy = folder / RECORD, "restore it, or choose another name"
    record = read_json(path, remedy)
    if not {"command", "packages"} <= record.keys():
        raise UserError(f"{path}: not the record of a run; {remedy}")
    return record


def is_recorded(folder: Path) -> bool:
    """Whether `begin_record` has written to the folder."""
    try:
        return bool(read_record(folder))
    except UserError:  # missing, or written by another program
        return False


def write_record(folder: Path, config: RunConfig | CompositionConfig, **more: Any) -> None:
    """Write `record.json` and the resolved config.

    The config is written last: a folder with a config has a complete record, even after a kill.
    """
    begin_record(folder, **more)
    file = COMPOSITION_FILE if isinstance(config, CompositionConfig) else "config.yaml"
    write_text(folder / file, to_yaml(config.model_dump()))


def git_state() -> dict[str, Any] | None:
    """Return the commit and whether the working tree differs from it; None outside a repository."""
    version = code_version()
    commit = version.removesuffix("-dirty")
    return None if version == "unknown" else {"commit": commit, "dirty": commit != version}


def code_version() -> str:
    """Return the commit, with `-dirty` if the working tree differs from it; or `unknown`."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    command += ["--abbrev=40", "--exclude=*"]  # the commit alone, without a tag
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


class RunLog:
    """Write `metrics.jsonl`, one JSON object a line in the order of steps, and the same to the trackers.

    Times are left out, so that a resumed run writes the same lines as an uninterrupted one. Only the
    main process writes.

    Args:
        folder: the run's; lines after `step` are removed, because a resumed run writes them again.
        unscored: also remove the line of the validation after `step`.
    """

    def __init__(self, folder: Path, accelerator: Accelerator, step: int, unscored: bool = False):
        self.path, self.accelerator = folder / METRICS_FILE, accelerator
        if accelerator.is_main_process:
            lines = self.path.read_bytes().split(b"\n") if self.path.exists() else []
            # A kill or a full disk may have truncated the last line.
            written = [(line, _parse(self.path, line)) for line in lines if line.endswith(b"}")]
            again = (step, True) if unscored else (step + 1, False)
            kept = [line for line, values in written if (values["step"], VAL in values) < again]
            write_text(self.path, "".join(line.decode() + "\n" for line in kept))

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        """Append one line. Raises ValueError for NaN and infinity, which are not JSON."""
        if self.accelerator.is_main_process:
            line = json.dumps({"step": step, "stage": stage, **values}, allow_nan=False)
            append_text(self.path, line + "\n")
        self.accelerator.log(dict(values), step=step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a `metrics.jsonl`. Raises UserError if one is damaged."""
    return [_parse(path, line) for line in path.read_bytes().split(b"\n") if line]


def _parse(path: Path, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line.decode())
        if isinstance(values["step"], int):
            return values
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    shown = line[:SHOWN_BYTES].decode(errors="replace")
    raise UserError(f"{path}: a line is not JSON with a step ({shown!r}); repair or remove it")


def locked(folder: Path) -> AbstractContextManager[Any]:
    """Lock a run's folder; the lock is released when the process ends, however it ends.

    Raises UserError if another process trains there.
    """
    return held(folder / LOCK, f"{folder}: another process trains there", "wait, or --set name=...")


def open_run(config: RunConfig, *, resume: bool, overwrite: bool) -> tuple[Path, bool]:
    """Create or reopen a run's folder; return it, and whether the run is already finished.

    A run killed before its first checkpoint starts again. If a run logged no step, its name can be
    reused. Raises UserError if the folder holds another run, an unfinished one without `resume`, or a file
    of another program that would be replaced.
    """
    folder = Path(config.out) / config.name
    refuse_foreign(folder)
    if overwrite:
        _refuse_overwriting(folder, config)
    if (overwrite and is_recorded(folder)) or _never_stepped(folder):
        _empty(folder)
    if (folder / COMPOSITION_FILE).exists():
        raise UserError(f"{folder}: holds an ensemble; choose another name, or --overwrite it")
    if not (folder / "config.yaml").exists():
        write_record(folder, config)
        return folder, False
    changed = differences(load_config(folder / "config.yaml", RunConfig), config)
    if changed:
        raise UserError(
            f"{folder}: holds a run with another config ({'; '.join(changed)}); choose another name,"
            " or --overwrite it"
        )
    if (folder / SUMMARY).exists():
        return folder, True
    if Checkpoints(folder, 1).paths() and not resume:
        raise UserError(f"{folder}: holds an unfinished run; --resume it, or --overwrite it")
    return folder, False


def refuse_foreign(folder: Path) -> None:
    """Raise UserError if a run or an ensemble would replace a file that neither wrote."""
    for path in () if is_recorded(folder) else sorted(folder.glob("*")):
        if _is_of(path, REPLACED) and not _is_folder(path):
            raise UserError(
                f"{folder}: holds {path.name}, which would be replaced, and no record.json shows that"
                " a run wrote it; choose another name, or move the file"
            )


def keep_classes(folder: Path, classes: list[str]) -> None:
    """Write the class list of a new run, one label a line; a class's line number is its id.

    Raises UserError if the run started with other classes: its class weights would belong to those.
    """
    path = folder / CLASSES
    if not path.exists():
        write_text(path, "".join(f"{label}\n" for label in classes))
        return
    known = read_classes(folder)
    if known != classes:
        raise UserError(
            f"{folder}: started with {len(known)} classes, the manifest now has {len(classes)}"
            f" (missing: {_first(set(known) - set(classes))}; new: {_first(set(classes) - set(known))});"
            " restore the old manifest, or --overwrite the run"
        )


def read_classes(folder: Path) -> list[str]:
    """Return the labels that `keep_classes` wrote, by id. Raises UserError if the file is damaged."""
    path = folder / CLASSES
    try:
        return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise UserError(f"{path}: it is not UTF-8; restore it, or train the run again") from None


def read_class_weights(folder: str | Path, labels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Read a run's class weights for those `labels` it knows: their indices (C,), and weights (C, k, T).

    Raises UserError if the folder has none.
    """
    folder = Path(folder)
    if not (folder / CLASS_WEIGHTS).is_file() or not (folder / CLASSES).is_file():
        raise UserError(
            f"{folder}: has no {CLASS_WEIGHTS}, which relation logits needs; name a run with a margin"
            " softmax and no projector, or use another relation"
        )
    known = read_classes(folder)
    row = {label: number for number, label in enumerate(known)}
    shared = [number for number, label in enumerate(labels) if label in row]
    weight_CkT = read_tensors(folder / CLASS_WEIGHTS)[CLASS_WEIGHT]
    rows = [row[labels[number]] for number in shared]
    return torch.tensor(shared, dtype=torch.long), weight_CkT[rows]


def add_to_record(folder: Path, **more: Any) -> None:
    """Add entries to `record.json`. Raises as `read_record`."""
    write_json(folder / RECORD, read_record(folder) | more)


def keep_images(folder: Path, states: pd.DataFrame | None) -> None:
    """Record STATE of a new run's training images, if it was read, for `check_images`."""
    if states is not None:
        with replacing(folder / IMAGES) as temporary:
            save_arrays(temporary, **{key: states[key] for key in STATE})


def check_images(folder: Path, states: pd.DataFrame | None) -> None:
    """Raise UserError if training images were replaced, by their size and modification time.

    Their content is not compared. If all times and no size changed, the images count as a copy.
    """
    file = folder / IMAGES
    if states is None or not file.exists():
        return
    try:
        with np.load(file) as known:
            sizes_differ, times_differ = (known[key] != states[key].to_numpy() for key in STATE)
            first = int((sizes_differ if sizes_differ.any() else times_differ).argmax())
            before = int(known["size_bytes"][first])
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        raise UserError(f"{file}: damaged; remove it to resume without comparing images") from None
    changed = int((sizes_differ | times_differ).sum())
    if times_differ.all() and not sizes_differ.any():
        print(
            f"{folder}: all {changed:,} training images have another modification time and the same size;"
            " they are treated as a copy of the run's original images",
            file=sys.stderr,
        )
    elif changed:
        now = int(states["size_bytes"].iloc[first])
        sizes = f"{before:,} bytes, now {now:,}"
        what = sizes if sizes_differ.any() else "its modification time"
        raise UserError(
            f"{folder}: {changed:,} of {len(states):,} training images changed since the run started,"
            f" first {states['image_path'].iloc[first]} ({what}); restore the old ones, or --overwrite the"
            f" run (if their content is the same, remove {file} and --resume)"
        )


def read_summary(folder: Path) -> dict[str, Any]:
    """Read `summary.json` of a finished run or ensemble. Raises UserError if it is damaged."""
    path, remedy = folder / SUMMARY, "remove it, and run train.py with --resume"
    summary = read_json(path, remedy)
    if "best" not in summary:
        raise UserError(f"{path}: not the summary of a run; {remedy}")
    return summary


def best_score_text(summary: dict[str, Any]) -> str:
    """Describe which weights a run keeps as its best."""
    best = summary["best"]
    if best is None:
        return "no val split, so the last weights are kept"
    return f"best val R@1 {best['val_r_at_1']:.3f} at step {best['step']}"


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Return `key: old value, now new value` for each difference that would change the run."""
    a, b = _flat(old.model_dump()), _flat(new.model_dump())
    bound = [key for key in {**a, **b} if key.rpartition(".")[2] not in FREE]
    return [f"{key}: {a.get(key)}, now {b.get(key)}" for key in bound if a.get(key) != b.get(key)]


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
    """Raise UserError if --overwrite would delete inputs of the new run."""
    for key, value in _flat(config.model_dump()).items():
        begins_with = re.search(r"(^|\.)(start_from|pretrained(\.file)?|model)$", key)
        if begins_with and value and Path(value).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{key}: --overwrite would delete {value}; choose another name")


def _never_stepped(folder: Path) -> bool:
    """Whether the folder holds only a run that was refused or killed before its first step."""
    if not (is_recorded(folder) and (folder / "config.yaml").exists()):
        return False
    logged = (folder / METRICS_FILE).exists() and (folder / METRICS_FILE).stat().st_size > 0
    first = (*FIRST, LOCK, UNFINISHED)
    return not logged and all(_is_of(path, first) for path in folder.iterdir())


def _empty(folder: Path) -> None:
    """Remove what runs write; a user's own files stay. Links are removed, never followed.

    The lock stays, because this process holds it, and `record.json`, which marks the folder as ours. The
    config is removed last, so that a kill leaves an unfinished run.
    """
    checkpoints = folder / FOLDER
    if not checkpoints.is_symlink():
        unfinished = [checkpoints / UNNAMED, *checkpoints.glob(UNFINISHED)]
        for path in (*Checkpoints(folder, 1).paths(), *unfinished):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # it does not exist, or holds other files
            checkpoints.rmdir()
    (folder / SUMMARY).unlink(missing_ok=True)
    configs = ("config.yaml", COMPOSITION_FILE)
    for path in sorted(folder.glob("*"), key=lambda path: path.name in configs):
        kept = path.name in (LOCK, RECORD) or _is_folder(path)
        if _is_of(path, WRITTEN) and not kept:
            path.unlink()


def _is_of(path: Path, patterns: Iterable[str]) -> bool:
    return any(map(path.match, patterns))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _first(labels: set[str]) -> str:
    shown = ", ".join(sorted(labels)[:3])
    return f"{shown} and {len(labels) - 3} more" if len(labels) > 3 else shown or "none"
