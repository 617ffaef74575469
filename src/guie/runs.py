"""Run folders: one a config, made by training, refused where it would overwrite another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from guie.config import RunConfig, load_config
from guie.errors import UserError
from guie.files import write_json
from guie.logs import write_record

CHECKPOINT = "checkpoint.pt"
SUMMARY = "summary.json"  # written last: a run that has one is finished


def open_run(config: RunConfig, *, resume: bool, overwrite: bool) -> tuple[Path, bool]:
    """Make or reopen the folder of a run; return it, and whether the run is finished already.

    A run killed before its first checkpoint simply starts again. Raises UserError if the folder
    holds another run, or an unfinished one that nobody asked to resume.
    """
    folder = Path(config.out) / config.name
    if overwrite and folder.exists():
        shutil.rmtree(folder)
    if not (folder / "config.yaml").exists():
        write_record(folder, config)
        return folder, False
    changed = _changed(load_config(folder / "config.yaml", RunConfig), config)
    if changed:
        raise UserError(
            f"{folder}: holds a run of another config (differs in {', '.join(changed)});"
            " choose another name, or --overwrite it"
        )
    if (folder / SUMMARY).exists():
        return folder, True
    if (folder / CHECKPOINT).exists() and not resume:
        raise UserError(f"{folder}: holds an unfinished run; --resume it, or --overwrite it")
    return folder, False


def finish(folder: Path, summary: dict[str, Any]) -> None:
    """Write `summary.json`, which marks the run as finished."""
    write_json(folder / SUMMARY, summary)


def read_summary(folder: Path) -> dict[str, Any]:
    """`summary.json` of a finished run."""
    return json.loads((folder / SUMMARY).read_text(encoding="utf-8"))


def _changed(old: RunConfig, new: RunConfig) -> list[str]:
    """Top-level keys that differ; how data is fed does not change a run."""
    a, b = old.model_dump(), new.model_dump()
    for values in (a, b):
        values["data"].pop("workers")
    return [key for key in a if a[key] != b[key]]
