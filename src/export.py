"""Export a trained run as the challenge's submission, or for use outside the challenge.

python src/export.py --run runs/demo --out submissions/demo
python src/export.py --run runs/demo --out submissions/today --torch current
python src/export.py --run runs/demo --out exported/demo --format onnx
python src/export.py --run runs/demo --out exported/demo --format pt2
python src/export.py --run runs/demo --out exported/hub --format hub
python src/export.py --run runs/demo --out exported/hub --format hub --push OWNER/NAME --dry-run

Without --format: submission.zip (saved_model.pt, TorchScript), card.md and export.json. The file is made for
PyTorch 1.11, the challenge's runtime. The export fails if PyTorch 1.11 cannot run it, or if the saved model
differs from the trained one. `--torch current` makes it for a scorer with current PyTorch.

onnx and pt2 (torch.export) write model.onnx or model.pt2, with a model card and a JSON file. The
preprocessing is included, and any number of images of any size is allowed. The file is compared with the
trained model before it replaces an old one. hub writes a folder that timm or open_clip loads.
--push uploads it to the hub, and --dry-run only lists the files. onnx needs requirements-export.txt.
"""

from __future__ import annotations

import argparse
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
from guie.export import (
    FORMATS,
    check_format,
    check_operators,
    differences,
    downgrade,
    format_version,
    odd_sizes,
    package,
    parity,
    remembered,
    write_format,
)
from guie.export.card import describe, file_card, file_facts, model_card, without_folders
from guie.export.hub import listing, push, write_hub_folder
from guie.models import LoadedModel, open_model

MAX_DIMENSION = 64
TOLERANCE = 1e-5
ROUNDING = 1e-2  # allowed effect of fp16 on a value of a unit-length embedding
MODEL_NAME = "saved_model.pt"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="folder made by train.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument(
        "--weights",
        choices=("model", "last"),
        default="model",
        help="model: best by validation; last: of the last step (default: model)",
    )
    parser.add_argument(
        "--torch", choices=("1.11", "current"), default="1.11", help="runtime (default: 1.11)"
    )
    parser.add_argument(
        "--format",
        choices=("torchscript", *FORMATS, "hub"),
        default="torchscript",
        help="default: torchscript, the submission",
    )
    parser.add_argument(
        "--half",
        action="store_true",
        help="store matrices in fp16: half the size, computed in fp32 (torchscript)",
    )
    parser.add_argument("--push", metavar="OWNER/NAME", help="with --format hub: upload the folder")
    parser.add_argument(
        "--public", action="store_true", help="with --push: public repository (default: private)"
    )
    parser.add_argument("--dry-run", action="store_true", help="with --push: only list the files")
    args = parser.parse_args(argv)
    if args.half and args.format != "torchscript":
        parser.error(f"--half needs --format torchscript, not {args.format}")
    if args.push and args.format != "hub":
        parser.error("--push uploads a hub folder: add --format hub")
    if (args.dry_run or args.public) and not args.push:
        parser.error("--dry-run and --public need --push")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Export the model, verify it, and write its model card.

    Raises UserError if the run cannot be loaded, the format does not support its model, or a package is
    missing.
    """
    args = parse_args(argv)
    check_format(args.format)
    str(args.out).encode()  # UnicodeEncodeError: neither JSON nor torch could write such a name
    model = open_model(args.run, weights=f"{args.weights}.safetensors")
    if args.format == "torchscript":
        check_dimension(model.embedder.dim, args.run)
    args.out.mkdir(parents=True, exist_ok=True)
    known = {"folder": str(args.out), **describe(model, args.run, args.weights)}
    if args.format == "torchscript":
        export_submission(model, args, known)
    elif args.format == "hub":
        export_to_hub(model, args, known)
    else:
        export_file(model, args, known)


def export_submission(model: LoadedModel, args: argparse.Namespace, known: dict[str, Any]) -> None:
    """Write submission.zip, card.md and export.json. Raises UserError for a foreign card.md."""
    card, message = args.out / "card.md", args.out / "export.json"
    if card.exists() and not message.exists():
        raise UserError(
            f"{card}: export.py did not write it; choose another folder, or move the file"
        )
    # In the output folder, which needs the space anyway; the system's temporary folder may be small.
    with tempfile.TemporaryDirectory(prefix=".export-", dir=args.out) as folder:
        saved = Path(folder, MODEL_NAME)
        sizes = odd_sizes(model.preprocess.size_px)
        trained = remembered(model.scored, sizes) if args.half else None
        package(model.embedder, model.preprocess, saved, args.half)
        if args.torch == "1.11":
            make_portable(saved, args.run)
        rows = check_parity(model.scored, saved, model.preprocess.size_px, args.run)
        rounding = (
            check_rounding(differences(model.scored, trained, sizes), args.run) if trained else {}
        )
        zipped = args.out / "submission.zip"
        write_submission(saved, zipped)
        torchscript = {
            "runtime": args.torch,
            "written_by": torch.__version__,
            "format": format_version(saved),
            "parity": rows,
            "tolerance": TOLERANCE,
            **rounding,
        }
    facts = without_folders({**known, "torchscript": torchscript, "file": file_facts(zipped)})
    write_json(message, facts)
    write_text(card, model_card(facts))
    print(summary(zipped, facts))


def export_file(model: LoadedModel, args: argparse.Namespace, known: dict[str, Any]) -> None:
    """Write model.onnx or model.pt2, its model card and its JSON file."""
    made = write_format(args.format, model, args.out)
    path = args.out / made["name"]
    facts = without_folders({**known, "made": made, "file": file_facts(path)})
    write_json(path.with_name(f"{path.name}.json"), facts)
    write_text(path.with_name(f"{path.name}.md"), file_card(facts, FORMATS[args.format].use))
    worst = max(row["difference"] for row in made["parity"])
    print(
        f"{path}: {known['dimension']}-D, {path.stat().st_size / 1e6:.1f} MB, differs from the model by"
        f" at most {worst:.1e} (allowed: {made['tolerance']:g})"
    )


def export_to_hub(model: LoadedModel, args: argparse.Namespace, known: dict[str, Any]) -> None:
    """Write a folder that timm or open_clip loads; upload it with --push."""
    difference = write_hub_folder(model, args.out, without_folders(known))
    library = model.members[0].model.backbone.library
    print(f"{args.out}: {library} loads it; its features differ by {difference:.1e} of the largest")
    if not args.push:
        return
    for name, size_bytes in listing(args.out, args.push):
        print(
            f"{'to upload' if args.dry_run else 'uploading'} to {args.push}: {name}, {size_bytes:,} bytes"
        )
    if not args.dry_run:
        print(push(args.out, args.push, private=not args.public))


def check_dimension(dimension: int, run: Path) -> None:
    """Raise UserError if the embedding has more dimensions than the challenge allows."""
    if dimension > MAX_DIMENSION:
        raise UserError(
            f"{run}: the embedding has {dimension} dimensions, the challenge allows"
            f" {MAX_DIMENSION}; train with a head (model.head.dim: {MAX_DIMENSION}), or reduce it with"
            " compose.py"
        )


def make_portable(saved: Path, run: Path) -> None:
    """Rewrite the file for PyTorch 1.11. Raises UserError naming an operator that it cannot run."""
    downgrade(saved)
    problems = check_operators(saved)
    if problems:
        others = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise UserError(
            f"{run}: {problems[0]}{others}; or use --torch current, for current PyTorch"
        )


def check_parity(eager: nn.Module, saved: Path, size_px: int, run: Path) -> list[dict[str, Any]]:
    """Return the differences by image size. Raises UserError if the saved model differs too much."""
    rows = parity(eager, saved, odd_sizes(size_px))
    for row in rows:
        if not row["difference"] <= TOLERANCE:  # also true for NaN
            raise UserError(
                f"{run}: at {row['height']} x {row['width']} the saved model differs from the"
                f" trained one by {row['difference']:.1e}, above {TOLERANCE}; check whether its backbone"
                " branches on its input, or its weights contain NaN"
            )
    return rows


def check_rounding(rows: list[dict[str, Any]], run: Path) -> dict[str, float]:
    """Return the effect of fp16, for export.json. Raises UserError if it exceeds ROUNDING."""
    rounding = max(row["difference"] for row in rows)
    if not rounding <= ROUNDING:
        raise UserError(
            f"{run}: weights in fp16 change the embedding by {rounding:.1e}, above {ROUNDING:g}; export"
            " it without --half"
        )
    return {"rounding": rounding}


def write_submission(saved: Path, zipped: Path) -> None:
    """Write one uncompressed member, as weights do not compress; the bytes are reproducible."""
    member = zipfile.ZipInfo(MODEL_NAME)
    member.file_size = saved.stat().st_size
    with replacing(zipped) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        with saved.open("rb") as source, archive.open(member, "w") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)


def summary(zipped: Path, facts: dict[str, Any]) -> str:
    made, rows = facts["torchscript"], facts["torchscript"]["parity"]
    worst = max(row["difference"] for row in rows)
    return (
        f"{zipped}: {facts['dimension']}-D, {facts['file']['bytes'] / 1e6:.1f} MB, for PyTorch"
        f" {made['runtime']} (format {made['format']}), differs from the trained model by"
        f" at most {worst:.1e} over {len(rows)} image sizes"
    )


if __name__ == "__main__":
    errors.run(main)
