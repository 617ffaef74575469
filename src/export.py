"""Export a trained run as the challenge's submission, or for use elsewhere; prepare it for Kaggle.

python src/export.py --run runs/demo --out submissions/demo
python src/export.py --run runs/demo --out submissions/today --torch current
python src/export.py --run runs/demo --out submissions/first --dim 32
python src/export.py --run runs/demo --out exported/demo --format onnx
python src/export.py --run runs/demo --out exported/demo --format pt2
python src/export.py --run runs/demo --out exported/hub --format hub
python src/export.py --run runs/demo --out exported/hub --format hub --push OWNER/NAME --dry-run
python src/export.py --kaggle submissions/demo --user NAME --manifest input/mix_demo.csv
python src/export.py --kaggle submissions/demo --leaderboard 0.612 0.618

Without --format: submission.zip (saved_model.pt, TorchScript), card.md and export.json. The file is made for
PyTorch 1.11, the challenge's runtime. The export fails if PyTorch 1.11 cannot run it, or if the saved model
differs from the trained one. `--torch current` makes it for a scorer with current PyTorch. `--dim` keeps the
first numbers of the embedding, for a run with `task.nested`.

onnx and pt2 (torch.export) write model.onnx or model.pt2, with a model card and a JSON file. The
preprocessing is included, and any number of images of any size is allowed. The file is compared with the
trained model before it replaces an old one. hub writes a folder that timm or open_clip loads.
--push uploads it to the hub, and --dry-run only lists the files. onnx needs the extra `export`.

--kaggle takes the folder of a submission. It adds the submission to submissions/log.csv: hash, config, the
scores of score.py and the leaderboard; log.png plots them. --user writes the files for Kaggle's client and
prints its commands; nothing is uploaded. --manifest adds to card.md what score.py has found, with pictures
in card/.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guie.base import errors
from guie.base.arguments import local_path
from guie.base.errors import UserError
from guie.base.files import quoted

if TYPE_CHECKING:
    from guie.models import LoadedModel


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, help="folder made by train.py")
    source.add_argument("--kaggle", type=Path, metavar="FOLDER", help="a submission's folder")
    add = parser.add_argument_group("with --run").add_argument
    add("--out", type=local_path, help="folder of the result")
    weights = "model: best by validation; last: of the last step (default: model)"
    add("--weights", choices=("model", "last"), default="model", help=weights)
    add("--torch", choices=("1.11", "current"), help="runtime (default: 1.11)")
    formats, words = ("torchscript", "onnx", "pt2", "hub"), "default: torchscript, the submission"
    add("--format", choices=formats, default=formats[0], help=words)
    add("--dim", type=int, metavar="D", help="keep the first D numbers (default: all)")
    half = "store matrices in fp16: half the size, computed in fp32 (torchscript)"
    add("--half", action="store_true", help=half)
    add("--push", metavar="OWNER/NAME", help="with --format hub: upload the folder")
    add("--public", action="store_true", help="with --push: public repository (default: private)")
    add("--dry-run", action="store_true", help="with --push: only list the files")
    add = parser.add_argument_group("with --kaggle").add_argument
    add("--user", help="name of your Kaggle account")
    add("--slug", help="name of the data set (default: guie-<folder>)")
    add("--manifest", type=Path, help="manifest that it was scored on: adds results to card.md")
    add("--split", choices=("val", "test"), default="test", help="of the manifest (default: test)")
    add("--root", type=Path, help="folder of the images (default: the manifest's)")
    add("--no-images", action="store_true", help="show no image of the data set in card.md")
    scores = "the scores that Kaggle shows"
    add("--leaderboard", type=float, nargs="+", metavar=("PUBLIC", "PRIVATE"), help=scores)
    add("--log", type=Path, help="default: log.csv next to the folder")
    args = parser.parse_args(argv)
    refuse_combinations(parser, args)
    return args


def refuse_combinations(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with the parser's error if options do not belong together."""
    source, others = "--run", "user slug manifest split root no_images leaderboard log"
    if args.kaggle:
        source, others = "--kaggle", "out weights torch format dim half push public dry_run"
    for name in others.split():
        if getattr(args, name) != parser.get_default(name):
            parser.error(f"{source}: leave out --{name.replace('_', '-')}")
    other, of_manifest = args.format != "torchscript", args.root or args.no_images
    most_two = "takes one or two scores: the public, and optionally the private one"
    for wrong, message in (
        (args.run and not args.out, "--run needs --out"),
        (args.half and other, f"--half needs --format torchscript, not {args.format}"),
        (args.torch and other, f"--torch needs --format torchscript, not {args.format}"),
        (args.dim is not None and args.dim < 1, f"--dim {args.dim}: must be 1 or more"),
        (args.push and args.format != "hub", "--push uploads a hub folder: add --format hub"),
        ((args.dry_run or args.public) and not args.push, "--dry-run and --public need --push"),
        (of_manifest and not args.manifest, "--root and --no-images need --manifest"),
        (args.slug and not args.user, "--slug needs --user"),
        (len(args.leaderboard or ()) > 2, f"--leaderboard {most_two}"),
        # The plot has the same name, with .png
        (args.log and args.log.suffix != ".csv", f"--log {args.log}: must end in .csv"),
    ):
        if wrong:
            parser.error(message)


def main(argv: Sequence[str] | None = None) -> None:
    """Export the model, verify it, and write its model card; or prepare a submission for Kaggle.

    Raises UserError if the run cannot be loaded, the format does not support its model, or a package is
    missing; with --kaggle, if export.py or score.py did not write the folder, or its files do not match.
    """
    args = parse_args(argv)
    if args.kaggle:
        prepare_for_kaggle(args)
        return
    from guie.export.card import describe
    from guie.models import narrowed, open_model

    if args.format == "onnx":
        from guie.export.formats import check_installed

        check_installed()
    if args.push:
        from guie.export.hub import check_repository

        check_repository(args.push)
    model = open_model(args.run, weights=f"{args.weights}.safetensors")
    if args.dim is not None:
        model = narrowed(model, args.dim)
    facts = {"folder": str(args.out), **describe(model, args.run, args.weights)}
    if args.format == "hub":
        export_to_hub(model, args, facts)
        return
    if args.format == "torchscript":
        from guie.export.submission import write_submission

        path = args.out / "submission.zip"
        made = write_submission(model, args.out, facts, args.torch or "1.11", args.half)
        target = f", for PyTorch {made['runtime']} (format {made['format']})"
    else:
        from guie.export.formats import write_file

        path, made = write_file(args.format, model, args.out, facts)
        target = ""
    worst = max(row["difference"] for row in made["parity"])
    differs = f"differs from the trained model by at most {worst:.1e}"
    size = f"{facts['dimension']}-D, {path.stat().st_size / 1e6:.1f} MB{target}"
    print(f"{path}: {size}, {differs} (allowed: {made['tolerance']:g})")


def prepare_for_kaggle(args: argparse.Namespace) -> None:
    """Write the card and the upload folder, update the log, plot it."""
    folder = args.kaggle
    if not (folder / "export.json").is_file():
        remedy = f"`export.py --out {quoted(folder)}` makes a submission"
        raise UserError(f"{folder}: no export.json; {remedy}")
    from guie.export import kaggle

    if args.manifest:
        from guie.export.answers import describe_answers

        describe_answers(folder, args.manifest, args.split, args.root, images=not args.no_images)
    if args.user is not None:
        kaggle.prepare_upload(folder, args.user, args.slug)
    kaggle.enter_log(folder, args.log or folder.resolve().parent / "log.csv", args.leaderboard)


def export_to_hub(model: LoadedModel, args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Write a folder that timm or open_clip loads; upload it with --push."""
    from guie.export.card import without_folders
    from guie.export.hub import listing, push, write_hub_folder

    difference = write_hub_folder(model, args.out, without_folders(facts))
    library = model.members[0].model.backbone.library
    print(f"{args.out}: {library} loads it; its features differ by {difference:.1e} of the largest")
    if not args.push:
        return
    doing = "to upload" if args.dry_run else "uploading"
    for name, size_bytes in listing(args.out):
        print(f"{doing} to {args.push}: {name}, {size_bytes:,} bytes")
    if not args.dry_run:
        print(push(args.out, args.push, private=not args.public))


if __name__ == "__main__":
    errors.run(main)
