"""Package a trained run as the challenge's submission, with a model card beside it.

python src/export.py --run runs/demo --out submissions/demo
python src/export.py --run runs/demo --out submissions/today --torch current

Writes submission.zip (saved_model.pt, TorchScript), card.md and export.json. The file is made for
PyTorch 1.11, the challenge's runtime, and refused if that could not run it or if the saved model
differs from the trained one; `--torch current` makes it for a scorer with the PyTorch of today.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from guie.base import errors
from guie.base.errors import UserError
from guie.base.files import replacing, write_json, write_text
from guie.export import check_operators, downgrade, format_version, odd_sizes, package, parity
from guie.export.card import model_card
from guie.model import LoadedModel, open_model
from guie.training.run.record import read_metrics

MAX_DIMENSION = 64
TOLERANCE = 1e-5
MODEL_NAME = "saved_model.pt"
ABSOLUTE = re.compile(r"^([^/]*=|)(/.*)$")  # alone, or in an argument KEY=VALUE


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="folder made by train.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the submission")
    parser.add_argument(
        "--weights",
        choices=("model", "last"),
        default="model",
        help="the best by validation, or those of the last step",
    )
    parser.add_argument(
        "--torch", choices=("1.11", "current"), default="1.11", help="runtime (default: 1.11)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Export, verify, describe.

    Raises UserError if the run cannot be loaded, or its model cannot be a submission.
    """
    args = parse_args(argv)
    model = open_model(args.run, weights=f"{args.weights}.safetensors")
    check_dimension(model.embedder.dim, args.run)
    args.out.mkdir(parents=True, exist_ok=True)
    # Beside the result, where there must be room anyway; a system's own folder may be small.
    with tempfile.TemporaryDirectory(prefix=".export-", dir=args.out) as folder:
        saved = Path(folder, MODEL_NAME)
        package(model.embedder, model.preprocess, saved)
        if args.torch == "1.11":
            make_portable(saved, args.run)
        rows = check_parity(model.scored, saved, model.preprocess.size_px, args.run)
        zipped = args.out / "submission.zip"
        write_submission(saved, zipped)
        torchscript = {
            "runtime": args.torch,
            "written_by": torch.__version__,
            "format": format_version(saved),
            "parity": rows,
            "tolerance": TOLERANCE,
        }
    facts = without_folders(
        {
            "folder": str(args.out),
            **describe(model, args.run, args.weights),
            "dimension": model.embedder.dim,
            "torchscript": torchscript,
            "file": {"bytes": zipped.stat().st_size, "sha256": sha256(zipped)},
        }
    )
    write_json(args.out / "export.json", facts)
    write_text(args.out / "card.md", model_card(facts))
    print(summary(zipped, facts))


def check_dimension(dimension: int, run: Path) -> None:
    """Raise UserError where the embedding has more numbers than the challenge admits."""
    if dimension > MAX_DIMENSION:
        raise UserError(
            f"{run}: the embedding has {dimension} dimensions, the challenge admits"
            f" {MAX_DIMENSION}; train with a head (model.head.dim: {MAX_DIMENSION})"
        )


def make_portable(saved: Path, run: Path) -> None:
    """Rewrite the file for PyTorch 1.11. Raises UserError naming what 1.11 could not run."""
    downgrade(saved)
    problems = check_operators(saved)
    if problems:
        others = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise UserError(
            f"{run}: {problems[0]}{others}; `--torch current` exports it for today's PyTorch"
        )


def check_parity(eager: nn.Module, saved: Path, size_px: int, run: Path) -> list[dict[str, Any]]:
    """Differences by image size. Raises UserError if the saved model is not the trained one."""
    rows = parity(eager, saved, odd_sizes(size_px))
    for row in rows:
        if not row["difference"] <= TOLERANCE:  # NaN is refused too
            raise UserError(
                f"{run}: at {row['height']} x {row['width']} the saved model differs from the"
                f" trained one by {row['difference']:.1e}, above {TOLERANCE}: does its backbone branch on its"
                " input, or do its weights hold a NaN?"
            )
    return rows


def write_submission(saved: Path, zipped: Path) -> None:
    """One member at the root, stored: weights do not compress. The same bytes whenever it is run."""
    member = zipfile.ZipInfo(MODEL_NAME)
    member.file_size = saved.stat().st_size
    with replacing(zipped) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        with saved.open("rb") as source, archive.open(member, "w") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)


def describe(model: LoadedModel, run: Path, weights: str) -> dict[str, Any]:
    """What is known of the run: its models, code version and the validation of its weights."""
    file = run / "record.json"
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return {
        "source": model.source,
        "parameters": sum(p.numel() for p in model.embedder.parameters()),
        "models": [member.model_dump() for member in model.self_contained()],
        "record": record,
        "weights": weights,
        "validation": validation_of(weights, run / "metrics.jsonl"),
    }


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


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def summary(zipped: Path, facts: dict[str, Any]) -> str:
    made, rows = facts["torchscript"], facts["torchscript"]["parity"]
    worst = max(row["difference"] for row in rows)
    return (
        f"{zipped}: {facts['dimension']}-D, {facts['file']['bytes'] / 1e6:.1f} MB, for PyTorch"
        f" {made['runtime']} (format {made['format']}), differs from the trained model by"
        f" {worst:.1e} at most over {len(rows)} image sizes"
    )


if __name__ == "__main__":
    errors.run(main)
