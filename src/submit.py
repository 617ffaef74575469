"""Make a submission's folder ready for Kaggle's official client, and keep a log of the scores.

python src/submit.py --submission submissions/demo --user NAME
python src/submit.py --submission submissions/demo --leaderboard 0.612 0.618

--user writes dataset-metadata.json, kernel-metadata.json and submit.ipynb beside submission.zip, checks
all that can be checked without a network (the notebook is run on a stand-in of Kaggle's folders), lists
what would go up, and prints the client's commands. Nothing is sent. Every call enters the submission in
submissions/log.csv: hash, config, what score.py measured, what the leaderboard said; once it holds
leaderboard scores, log.png beside it draws them against the local ones.
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
        help="what Kaggle says of it",
    )
    parser.add_argument("--log", type=Path, help="default: log.csv beside the folder")
    args = parser.parse_args(argv)
    if args.leaderboard and len(args.leaderboard) > 2:
        parser.error("--leaderboard takes the public score, and perhaps the private one")
    if args.log and args.log.suffix != ".csv":  # its picture has the same name, and .png
        parser.error(f"--log {args.log}: is to end in .csv")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Write, check, enter, draw. Raises UserError where the folder is not what Kaggle takes."""
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
            print(f"would go up: {name}, {size_bytes:,} bytes")
        print("dry run: all is as the client wants it. To send it:")
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
