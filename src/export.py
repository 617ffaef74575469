"""Export a trained run as the challenge's submission, or for use outside the challenge.

python src/export.py --run runs/demo --out submissions/demo
python src/export.py --run runs/demo --out submissions/today --torch current
python src/export.py --run runs/demo --out submissions/first --dim 32
python src/export.py --run runs/demo --out exported/demo --format onnx
python src/export.py --run runs/demo --out exported/demo --format pt2
python src/export.py --run runs/demo --out exported/hub --format hub
python src/export.py --run runs/demo --out exported/hub --format hub --push OWNER/NAME --dry-run

Without --format: submission.zip (saved_model.pt, TorchScript), card.md and export.json. The file is made for
PyTorch 1.11, the challenge's runtime. The export fails if PyTorch 1.11 cannot run it, or if the saved model
differs from the trained one. `--torch current` makes it for a scorer with current PyTorch. `--dim` keeps the
first numbers of the embedding, for a run with `task.nested`.

onnx and pt2 (torch.export) write model.onnx or model.pt2, with a model card and a JSON file. The
preprocessing is included, and any number of images of any size is allowed. The file is compared with the
trained model before it replaces an old one. hub writes a folder that timm or open_clip loads.
--push uploads it to the hub, and --dry-run only lists the files. onnx needs the extra `export`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guie.base import errors
from guie.base.arguments import local_path

if TYPE_CHECKING:
    from guie.models import LoadedModel


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--run", type=Path, required=True, help="folder made by train.py")
    add("--out", type=local_path, required=True, help="folder of the result")
    weights = "model: best by validation; last: of the last step (default: model)"
    add("--weights", choices=("model", "last"), default="model", help=weights)
    add("--torch", choices=("1.11", "current"), help="runtime (default: 1.11)")
    formats = ("torchscript", "onnx", "pt2", "hub")
    add(
        "--format", choices=formats, default=formats[0], help="default: torchscript, the submission"
    )
    add("--dim", type=int, metavar="D", help="keep the first D numbers (default: all)")
    half = "store matrices in fp16: half the size, computed in fp32 (torchscript)"
    add("--half", action="store_true", help=half)
    add("--push", metavar="OWNER/NAME", help="with --format hub: upload the folder")
    add("--public", action="store_true", help="with --push: public repository (default: private)")
    add("--dry-run", action="store_true", help="with --push: only list the files")
    args = parser.parse_args(argv)
    if args.half and args.format != "torchscript":
        parser.error(f"--half needs --format torchscript, not {args.format}")
    if args.torch and args.format != "torchscript":
        parser.error(f"--torch needs --format torchscript, not {args.format}")
    if args.dim is not None and args.dim < 1:
        parser.error(f"--dim {args.dim}: must be 1 or more")
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
    from guie.export.card import describe
    from guie.export.formats import check_installed
    from guie.models import narrowed, open_model

    if args.format == "onnx":
        check_installed()
    if args.push:
        from guie.export.hub import check_repository

        check_repository(args.push)
    str(args.out).encode()  # UnicodeEncodeError: neither JSON nor torch could write such a name
    model = open_model(args.run, weights=f"{args.weights}.safetensors")
    if args.dim is not None:
        model = narrowed(model, args.dim)
    facts = {"folder": str(args.out), **describe(model, args.run, args.weights)}
    if args.format == "torchscript":
        export_submission(model, args, facts)
    elif args.format == "hub":
        export_to_hub(model, args, facts)
    else:
        export_file(model, args, facts)


def export_submission(model: LoadedModel, args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Write submission.zip, card.md and export.json."""
    from guie.export.submission import write_submission

    facts = write_submission(model, args.out, facts, args.torch or "1.11", args.half)
    made, rows = facts["torchscript"], facts["torchscript"]["parity"]
    worst = max(row["difference"] for row in rows)
    print(
        f"{args.out / 'submission.zip'}: {facts['dimension']}-D, {facts['file']['bytes'] / 1e6:.1f} MB, for"
        f" PyTorch {made['runtime']} (format {made['format']}), differs from the trained model by"
        f" at most {worst:.1e} over {len(rows)} image sizes"
    )


def export_file(model: LoadedModel, args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Write model.onnx or model.pt2, its model card and its JSON file."""
    from guie.export.formats import write_file

    path, made = write_file(args.format, model, args.out, facts)
    worst = max(row["difference"] for row in made["parity"])
    print(
        f"{path}: {facts['dimension']}-D, {path.stat().st_size / 1e6:.1f} MB, differs from the model by"
        f" at most {worst:.1e} (allowed: {made['tolerance']:g})"
    )


def export_to_hub(model: LoadedModel, args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Write a folder that timm or open_clip loads; upload it with --push."""
    from guie.export.card import without_folders
    from guie.export.hub import listing, push, write_hub_folder

    difference = write_hub_folder(model, args.out, without_folders(facts))
    library = model.members[0].model.backbone.library
    print(f"{args.out}: {library} loads it; its features differ by {difference:.1e} of the largest")
    if not args.push:
        return
    for name, size_bytes in listing(args.out):
        print(
            f"{'to upload' if args.dry_run else 'uploading'} to {args.push}: {name}, {size_bytes:,} bytes"
        )
    if not args.dry_run:
        print(push(args.out, args.push, private=not args.public))


if __name__ == "__main__":
    errors.run(main)
