"""Prepare a scored submission for Kaggle: upload folder, results in the model card, log of the scores.

python src/submit.py --submission submissions/demo --user NAME --manifest input/mix_demo.csv
python src/submit.py --submission submissions/demo --manifest mix.parquet --root input --no-images
python src/submit.py --submission submissions/demo --leaderboard 0.612 0.618

--user checks that submission.zip is the file that export.py wrote, and writes dataset-metadata.json,
kernel-metadata.json and submit.ipynb next to it. Then it lists the files to upload and prints the client's
commands. Nothing is uploaded.

--manifest adds what the submission finds, and its limits, to card.md: charts, galleries, tables. It reads
score.json and score.neighbours.csv, which score.py wrote. The pictures are in card/, which is not uploaded.

Every call adds the submission to submissions/log.csv: hash, config, the scores of score.py and the
leaderboard. Once the log has leaderboard scores, log.png plots them against the local ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from guie.base import errors
from guie.base.errors import UserError
from guie.base.files import quoted, read_json, replacing, write_text


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--submission", type=Path, required=True, help="folder made by export.py")
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
    if (args.root or args.no_images) and not args.manifest:
        parser.error("--root and --no-images need --manifest")
    if args.slug and not args.user:
        parser.error("--slug needs --user")
    if args.leaderboard and len(args.leaderboard) > 2:
        parser.error(
            "--leaderboard takes one or two scores: the public, and optionally the private one"
        )
    if args.log and args.log.suffix != ".csv":  # the plot has the same name, with .png
        parser.error(f"--log {args.log}: must end in .csv")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Write the card and the upload folder, update the log, plot it.

    Raises UserError if export.py or score.py did not write the folder, or its files do not match.
    """
    args = parse_args(argv)
    folder = args.submission
    if not (folder / "export.json").is_file():
        raise UserError(
            f"{folder}: no export.json; `export.py --out {quoted(folder)}` makes a submission"
        )
    if args.manifest:
        describe(folder, args.manifest, args.split, args.root, images=not args.no_images)
    if args.user is not None:
        prepare_upload(folder, args.user, args.slug)
    enter_log(folder, args.log or folder.resolve().parent / "log.csv", args.leaderboard)


def describe(folder: Path, manifest: Path, split: str, root: Path | None, images: bool) -> None:
    """Rewrite card.md with the search results, and draw its figures. Raises UserError without results.

    Args:
        images: show images of the data set, which may not be allowed to be published.
    """
    from guie.data.manifest import load_manifest
    from guie.export.answers import draw, read_answers, sections
    from guie.export.card import model_card

    rows = load_manifest(manifest, root)
    answers = read_answers(folder, rows, split)
    pictures = draw(answers, folder, rows.root if images else None)
    facts = read_json(folder / "export.json", "export.py writes it")
    write_text(folder / "card.md", model_card(facts, sections(answers, pictures)))
    print(f"wrote {folder / 'card.md'}, with {', '.join(pictures)}")


def prepare_upload(folder: Path, user: str, slug: str | None) -> None:
    """Check the submission, write the files for Kaggle's client, and print its commands."""
    from guie.export.kaggle import (
        check_archive,
        client_commands,
        files_to_upload,
        write_kaggle_folder,
    )

    slug = slug or f"guie-{folder.resolve().name.lower().replace('_', '-')}"
    check_archive(folder)
    write_kaggle_folder(folder, user, slug)
    for name, size_bytes in files_to_upload(folder):
        print(f"to upload: {name}, {size_bytes:,} bytes")
    print("dry run: the folder is valid. To upload it:")
    print(*client_commands(folder, user, slug), sep="\n")


def enter_log(folder: Path, log: Path, leaderboard: list[float] | None) -> None:
    """Add the submission to the log, and plot local scores against the leaderboard's."""
    from guie.export.kaggle import enter, log_row
    from guie.report.figures import local_against_leaderboard

    if log.with_suffix(".png").exists() and not log.exists():
        raise UserError(f"{log.with_suffix('.png')}: would be replaced; give another --log")
    rows = enter(log, log_row(folder, leaderboard))
    print(f"{log}: {len(rows)} submissions")
    points = [
        (row["name"], float(row["local"]), float(row["leaderboard_public"]))
        for row in rows
        if row["local"] and row["leaderboard_public"]
    ]
    if points:
        with replacing(log.with_suffix(".png")) as temporary:
            local_against_leaderboard(points).savefig(temporary, dpi=100)
        print(f"{log.with_suffix('.png')}: local against leaderboard, {len(points)} submissions")


if __name__ == "__main__":
    errors.run(main)
