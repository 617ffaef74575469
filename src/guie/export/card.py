"""Write the model card: facts of an export and its run (Mitchell et al. 2019, arXiv 1810.03993)."""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from guie.base.errors import UserError
from guie.base.files import quoted, read_json, refuse_special
from guie.config.ensemble import CompositionConfig, leaves
from guie.models.opening import LoadedModel
from guie.training.run_folder import METRICS_FILE, read_metrics

ABSOLUTE = re.compile(r"^([^/]*=|)(/.*)$")  # on its own, or in an argument KEY=VALUE


def render(template: str, facts: dict[str, Any], **values: Any) -> str:
    """Return a model card as Markdown, by a template of `guie/export/templates` and facts of export.json."""
    text = _templates().get_template(template).render(facts=facts, **values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("guie.export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `python` quotes a string for code
    filters = {"cell": cell, "quoted": quoted, "joined": _joined, "python": json.dumps}
    environment.filters |= filters
    environment.filters["numbers"] = lambda values: ", ".join(f"{value:.4g}" for value in values)
    return environment


def cell(text: Any) -> str:
    """Escape foreign text for a Markdown cell: no cell separators, tags or code marks."""
    words = " ".join(str(text).split())
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _joined(composition: dict[str, Any]) -> str:
    """Describe how the embeddings of members and views are combined."""
    average = composition.get("join") == "average"
    words = ["averaged" if average else "concatenated"] if composition["members"][1:] else []
    views = composition.get("views", [])
    if len(views) > 1:
        chosen = any(view.get("aspect") or view.get("domains") for view in views)
        words.append(f"the mean of {'some of ' if chosen else ''}{len(views)} views of an image")
    elif views:
        words.append("in a view of its own: " + ", ".join(f"{k} {v}" for k, v in views[0].items()))
    if composition.get("average") == "raw":
        words.append("normalised after the mean")
    if "reduced_dim" in composition:
        words.append(f"reduced to {composition['reduced_dim']} dimensions")
    return ", ".join(words)


def describe(model: LoadedModel, run: Path, weights: str) -> dict[str, Any]:
    """Return the facts of the run: its models, code version and the validation of its weights."""
    file = run / "record.json"
    record = read_json(file, "train.py writes it") if file.exists() else None
    return {
        "source": model.source,
        "parameters": sum(p.numel() for p in model.embedder.parameters()),
        "composition": _composition(model.part.model_dump(exclude_defaults=True))
        if isinstance(model.part, CompositionConfig)
        else None,
        "models": [member.model_dump() for member in leaves(model.self_contained())],
        "record": record,
        "weights": weights,
        "validation": validation_of(weights, run / METRICS_FILE),
        "dimension": model.embedder.dim,
    }


def _composition(part: dict[str, Any]) -> dict[str, Any]:
    """Replace member models by their source (details are in `models`); nested ensembles stay."""
    members = [_composition(m) if "members" in m else m["source"] for m in part["members"]]
    return part | {"members": members}


def validation_of(weights: str, metrics: Path) -> dict[str, Any] | None:
    """Return the `metrics.jsonl` line of the best (`model`) or last weights; None without a val split."""
    lines = read_metrics(metrics) if metrics.exists() else []
    lines = [line for line in lines if "val_r_at_1" in line]
    if weights == "last":
        return lines[-1] if lines else None
    return max(lines, key=lambda line: line["val_r_at_1"], default=None)


def without_folders(value: Any) -> Any:
    """Shorten each absolute path to its last name, as folders reveal details of this machine."""
    if isinstance(value, dict):
        return {key: without_folders(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_folders(part) for part in value]
    if not isinstance(value, str):
        return value
    parts = value.split(", ")  # the sources of several models
    return ", ".join(ABSOLUTE.sub(lambda path: path[1] + Path(path[2]).name, p) for p in parts)


def file_facts(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of a file."""
    refuse_special(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def refuse_unmarked(files: Sequence[Path], mark: Path) -> None:
    """Raise UserError if one of these files exists without the file that an export writes with it."""
    present = [path for path in files if os.path.lexists(path)]
    if present and not mark.is_file():
        remedy = "choose another folder, or move the file"
        raise UserError(f"{present[0]}: export.py did not write it; {remedy}")
