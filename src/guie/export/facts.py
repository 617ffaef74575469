"""What is known of a run and its model: the facts that a card and `export.json` tell."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from guie.base.files import read_json, refuse_special
from guie.config.composition import CompositionConfig, leaves
from guie.model import LoadedModel
from guie.training.run.record import METRICS_FILE, read_metrics

ABSOLUTE = re.compile(r"^([^/]*=|)(/.*)$")  # alone, or in an argument KEY=VALUE


def describe(model: LoadedModel, run: Path, weights: str) -> dict[str, Any]:
    """What is known of the run: its models, code version and the validation of its weights."""
    file = run / "record.json"
    record = read_json(file, "train.py writes it") if file.exists() else None
    return {
        "source": model.source,
        "parameters": sum(p.numel() for p in model.embedder.parameters()),
        "composition": composition_of(model),
        "models": [member.model_dump() for member in leaves(model.self_contained())],
        "record": record,
        "weights": weights,
        "validation": validation_of(weights, run / METRICS_FILE),
        "dimension": model.embedder.dim,
    }


def composition_of(model: LoadedModel) -> dict[str, Any] | None:
    """How members become one embedding, by the keys of `CompositionConfig`; None of a model alone."""
    if not isinstance(model.part, CompositionConfig):
        return None
    return _without_models(model.part.model_dump(exclude_defaults=True))


def _without_models(part: dict[str, Any]) -> dict[str, Any]:
    """Members by their source, which `models` tells of, or as compositions themselves."""
    members = [_without_models(m) if "members" in m else m["source"] for m in part["members"]]
    return part | {"members": members}


def validation_of(weights: str, metrics: Path) -> dict[str, Any] | None:
    """The line of `metrics.jsonl` on the best (`model`) or last weights; None without a val split."""
    lines = read_metrics(metrics) if metrics.exists() else []
    lines = [line for line in lines if "val_r_at_1" in line]
    if weights == "last":
        return lines[-1] if lines else None
    return max(lines, key=lambda line: line["val_r_at_1"], default=None)


def without_folders(value: Any) -> Any:
    """The same facts, with the last name of every absolute path: where it lay tells of a machine."""
    if isinstance(value, dict):
        return {key: without_folders(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_folders(part) for part in value]
    if not isinstance(value, str):
        return value
    parts = value.split(", ")  # the sources of several models
    return ", ".join(
        ABSOLUTE.sub(lambda path: path[1] + Path(path[2]).name, part) for part in parts
    )


def file_facts(path: Path) -> dict[str, Any]:
    """Size and hash of a file."""
    refuse_special(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}
