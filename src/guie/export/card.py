"""Write the model card: facts of an export and its run (Mitchell et al. 2019, arXiv 1810.03993)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from guie.base.errors import UserError
from guie.base.files import quoted, read_json, refuse_special
from guie.config.ensemble import CompositionConfig, leaves
from guie.models.opening import LoadedModel
from guie.training.run_folder import METRICS_FILE, read_metrics


def refuse_unmarked(files: Sequence[Path], mark: Path) -> None:
    """Raise UserError if one of these files exists without the file that an export writes beside it."""
    standing = [path for path in files if os.path.lexists(path)]
    if standing and not mark.is_file():
        raise UserError(
            f"{standing[0]}: export.py did not write it; choose another folder, or move the file"
        )


def table(*rows: tuple[Any, ...], header: tuple[str, ...] = ("", "")) -> str:
    """Return a Markdown table, one line per row."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def cell(text: Any) -> str:
    """Escape foreign text for a Markdown cell: no cell separators, tags or code marks."""
    words = " ".join(str(text).split())
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


ABSOLUTE = re.compile(r"^([^/]*=|)(/.*)$")  # on its own, or in an argument KEY=VALUE


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
    return ", ".join(
        ABSOLUTE.sub(lambda path: path[1] + Path(path[2]).name, part) for part in parts
    )


def file_facts(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of a file."""
    refuse_special(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


_USE = """\
Use it to find images of the same object or product, in the domains it was trained on. Rank by Euclidean
distance, which for unit vectors gives the same order as cosine similarity.

Do not use it to identify people, nor as the only evidence: a neighbour is similar, not necessarily the
same. Results are worse for domains, viewpoints and cultures that the training images lack. The biases of
the backbone's pretraining remain. The licences of the backbone and of the training images apply."""


def model_card(facts: dict[str, Any], answers: dict[str, str] | None = None) -> str:
    """Return the model card as Markdown, from the facts in `export.json`.

    Args:
        answers: sections on the search results, text by title.
    """
    about = about_model(facts)
    sections = {
        **{title: about[title] for title in ("What it is", "Training", "Validation")},
        **(answers or {}),
        "The file": _file(facts),
        "Parity with the trained model": _parity(facts["torchscript"]),
        "Intended use and limits": about["Intended use and limits"],
        "How to score it": _scoring(facts["folder"]),
    }
    return _page(Path(facts["folder"]).name, sections)


def file_card(facts: dict[str, Any], use: str) -> str:
    """Return the model card of an ONNX or .pt2 file, for use outside the challenge.

    Args:
        facts: as in `export.json`, with those of the file under `made`.
        use: Python code from an image file to its embedding.
    """
    made, file = facts["made"], facts["file"]
    rows = [
        ("File", f"`{made['name']}`, {file['bytes']:,} bytes"),
        ("SHA-256", f"`{file['sha256']}`"),
    ]
    if made["data"]:
        data = f"`{made['data']['name']}`, {made['data']['bytes']:,} bytes"
        rows += [("Weights", data), ("Their SHA-256", f"`{made['data']['sha256']}`")]
    rows += list(made["written_by"].items())
    sections = {
        "How to use it": f"```python\n{use}```\n\n`x` (1, D) has unit length. {made['note']}",
        "The file": table(*rows),
        "Parity with the trained model": _parity(made),
        **about_model(facts | {"input": "uint8 (B, 3, H, W), RGB, original size"}),
    }
    return _page(made["name"], sections)


def about_model(facts: dict[str, Any]) -> dict[str, str]:
    """Return the sections that do not depend on the file format, text by title."""
    return {
        "What it is": _what(facts),
        "Training": _training(facts["models"], facts["record"]),
        "Validation": _validation(facts["validation"]),
        "Intended use and limits": _USE,
    }


def _page(name: str, sections: dict[str, str]) -> str:
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return f"# Model card: {name}\n\n{body}\n"


def _what(facts: dict[str, Any]) -> str:
    models = [member["model"] for member in facts["models"]]
    weights = (facts["record"] or {}).get("weights")  # if there is only one model
    rows = [
        ("Task", "an image of any size and domain -> one embedding of unit length"),
        ("Dimension", facts["dimension"]),
        ("Parameters", f"{facts['parameters'] / 1e6:.1f} M"),
        ("Input", facts.get("input", "uint8 (1, 3, H, W), RGB, original size")),
    ]
    composition = facts.get("composition")
    if composition:
        rows.append(("Models", f"{len(models)}, {_joined(composition)}"))
    if len(models) == 1:
        return table(*rows, *_model(models[0], weights))
    return "\n\n".join(
        [table(*rows)]
        + [f"### Model {n}\n\n{table(*_model(model))}" for n, model in enumerate(models, 1)]
    )


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


def _model(model: dict[str, Any], weights: dict[str, str] | None = None) -> list[tuple[str, Any]]:
    backbone, image = model["backbone"], model["image"]
    mean, std = (", ".join(f"{x:.4g}" for x in image[key]) for key in ("mean", "std"))
    stride_px = backbone["stride_px"]
    on_black = " on black" if (image["fit"], image["pad_color"]) == ("pad", "black") else ""
    overlap = f", patches overlapping, one every {stride_px} px" if stride_px else ""
    return [
        ("Backbone", f"{backbone['library']} `{backbone['name']}`{overlap}"),
        ("Pretrained weights", _pretrained(backbone["pretrained"], weights)),
        ("Preprocessing", f"{image['fit']}{on_black} to {image['size_px']} px, bicubic"),
        ("Normalisation", f"mean {mean}; std {std}"),
    ]


def _pretrained(pretrained: str | dict[str, str] | None, weights: dict[str, str] | None) -> str:
    if pretrained is None:
        return "none"
    if isinstance(pretrained, dict):
        pretrained = pretrained["tag"]
    return f"`{pretrained}`" + (f", SHA-256 `{weights['sha256']}`" if weights else "")


def _training(members: list[dict[str, Any]], record: dict[str, Any] | None) -> str:
    git = (record or {}).get("git") or {}
    commit = f"{git['commit']}{' with changes' if git['dirty'] else ''}" if git else "none"
    tables = []
    for number, member in enumerate(members, 1):
        title = f"### Model {number}: `{member['source']}`\n\n" if len(members) > 1 else ""
        tables.append(title + (_run(member["run"]) if member["run"] else "Not trained further."))
    tables.append(f"Made at commit {commit}. The whole configuration is in `export.json`.")
    return "\n\n".join(tables)


def _run(config: dict[str, Any]) -> str:
    task = ", ".join(f"{key} {value}" for key, value in config["task"].items() if key != "name")
    rows = [
        ("Run", f"`{config['name']}`, seed {config['seed']}, precision {config['precision']}"),
        ("Training images", f"`{config['data']['manifest']}`"),
        ("Task", f"{config['task']['name']} ({task})" if task else config["task"]["name"]),
    ]
    for number, stage in enumerate(config["stages"], 1):
        rates = ", ".join(f"{part} {rate:g}" for part, rate in _rates(stage["lr"]))
        size_px = stage["size_px"] or config["model"]["image"]["size_px"]
        domains = ", ".join(stage["domains"]) if stage["domains"] else "all domains"
        row = f"{stage['epochs']:g} epochs of batch {stage['batch_size']} at {size_px} px, "
        rows.append((f"Stage {number}", f"{row}{domains}; learning rates: {rates}"))
    return table(*rows)


def _rates(lr: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the learning rate of every part, and of backbone blocks that have their own."""
    for part, rate in lr.items():
        if part == "blocks":
            yield from ((f"backbone from block {block}", own) for block, own in rate.items())
        else:
            yield part, rate


def _validation(best: dict[str, Any] | None) -> str:
    if best is None:
        return "The run was not validated."
    prefix = "val_r_at_1/"
    rows = [(k.removeprefix(prefix), f"{v:.3f}") for k, v in best.items() if k.startswith(prefix)]
    return (
        f"Validation split, merged index, at step {best['step']}: R@1 {best['val_r_at_1']:.3f},"
        f" mMP@5 {best['val_mmp_at_5']:.3f} (means over domains). These weights were selected on it,"
        f" so it is optimistic.\n\n{table(*rows, header=('Domain', 'R@1'))}"
    )


def _file(facts: dict[str, Any]) -> str:
    made, file = facts["torchscript"], facts["file"]
    portable = "every operator is in PyTorch 1.11, with the arguments given"
    rounding = []
    if "rounding" in made:
        change = f"change the embedding by {made['rounding']:.1e} at most"
        rounding.append(("Matrices in fp16", change))
    return table(
        ("Submission", f"`submission.zip` with `saved_model.pt`, {file['bytes']:,} bytes"),
        ("SHA-256", f"`{file['sha256']}`"),
        ("Runtime", f"PyTorch {made['runtime']}; written by {made['written_by']}"),
        ("Format version", made["format"]),
        ("Operators", portable if made["runtime"] == "1.11" else "not checked"),
        *rounding,
    )


def _parity(made: dict[str, Any]) -> str:
    rows = []
    for row in made["parity"]:
        several = f", {row['images']} images at once" if row.get("images", 1) > 1 else ""
        rows.append((f"{row['height']} x {row['width']}{several}", f"{row['difference']:.1e}"))
    sizes = table(*rows, header=("Height x width", "Difference"))
    return (
        "Largest absolute difference of the embeddings, on images that are half noise and half slow waves."
        f" The export fails above {made['tolerance']:g}.\n\n{sizes}"
    )


def _scoring(folder: str) -> str:
    submission, score = quoted(f"{folder}/submission.zip"), quoted(f"{folder}/score.json")
    command = f"python src/score.py --submission {submission}"
    return f"```\n{command} \\\n    --manifest MANIFEST --out {score}\n```"
