"""Prepare a submission folder for Kaggle's official client, and keep a log of the scores.

python src/submit.py --submission submissions/demo --user NAME
python src/submit.py --submission submissions/demo --leaderboard 0.612 0.618

--user writes dataset-metadata.json, kernel-metadata.json and submit.ipynb next to submission.zip. It checks
them without a network (the notebook is run on copies of Kaggle's folders). Then it lists the files to upload
and prints the client's commands. Nothing is uploaded. Every call adds the submission to submissions/log.csv:
hash, config, the scores of score.py and the leaderboard. Once the log has leaderboard scores, log.png plots
them against the local ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from guie.base import errors
from guie.base.errors import UserError
from guie.base.files import quoted, replacing
from guie.export.kaggle import (
    check_kaggle_folder,
    client_commands,
    enter,
    log_row,
    write_kaggle_folder,
)
from guie.report.figures import local_against_leaderboard


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--submission", type=Path, required=True, help="folder made by export.py")
    parser.add_argument("--user", help="name of your Kaggle account")
    parser.add_argument("--slug", help="name of the data set (default: guie-<folder>)")
    parser.add_argument(
        "--leaderboard",
        type=float,
        nargs="+",
        metavar=("PUBLIC", "PRIVATE"),
        help="the scores that Kaggle shows",
    )
    parser.add_argument("--log", type=Path, help="default: log.csv next to the folder")
    args = parser.parse_args(argv)
    if args.leaderboard and len(args.leaderboard) > 2:
        parser.error(
            "--leaderboard takes one or two scores: the public, and optionally the private one"
        )
    if args.log and args.log.suffix != ".csv":  # the plot has the same name, with .png
        parser.error(f"--log {args.log}: must end in .csv")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Write and check the folder, update the log, plot it. Raises UserError for an invalid folder."""
    args = parse_args(argv)
    folder = args.submission
    if not (folder / "export.json").is_file():
        raise UserError(
            f"{folder}: no export.json; `export.py --out {quoted(folder)}` makes a submission"
        )
    if args.user:
        slug = args.slug or f"guie-{folder.resolve().name.lower().replace('_', '-')}"
        write_kaggle_folder(folder, args.user, slug)
        for name, size_bytes in check_kaggle_folder(folder):
            print(f"to upload: {name}, {size_bytes:,} bytes")
        print("dry run: the folder is valid. To upload it:")
        print(*client_commands(folder), sep="\n")
    log = args.log or folder.resolve().parent / "log.csv"
    rows = enter(log, log_row(folder, args.leaderboard))
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
