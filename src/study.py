"""Run a study: rows that change parts of a run's config, over seeds, compared with a baseline.

python src/study.py configs/studies/losses.yaml                  # runs what is missing, then the table
python src/study.py configs/studies/losses.yaml --jobs 2 --only arcface supcon
python src/study.py configs/studies/losses.yaml --list
python src/study.py configs/studies/losses.yaml --table   # existing results, runs nothing
python src/study.py --claims --write EXPERIMENTS.md              # claims of papers, a verdict each

Each run calls train.py, embed.py and validate.py. Its result is saved in configs/studies/<name>.json, by the
run's config and the version of results. So nothing runs twice, even under another name. Killed runs resume.
Run folders, logs, table.md and table.png are in runs/studies/<name>/. If a run fails, its error is saved and
shown, and the others continue.

exit code: 0 all results exist; 1 some runs failed; 2 error in the study or an argument; 128 + the signal
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from guie.base import errors
from guie.studies.grid import read_plan

CLAIMS = Path(__file__).parents[1] / "configs/studies/claims.yaml"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, nargs="?", help="YAML file, see configs/studies/")
    parser.add_argument(
        "--jobs", type=_at_least_one, default=1, help="runs in parallel (default: 1)"
    )
    parser.add_argument("--only", nargs="+", metavar="ROW", help="run only these rows")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="S", help="run only these seeds")
    parser.add_argument("--retry-failed", action="store_true", help="run failed runs again")
    parser.add_argument(
        "--any-code", action="store_true", help="also count results of an older version"
    )
    parser.add_argument("--list", action="store_true", help="only list the runs and their state")
    parser.add_argument(
        "--table", action="store_true", help="only print the table of existing results"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the table between its markers in FILE"
    )
    parser.add_argument(
        "--claims",
        action="store_true",
        help="print the table of claims; STUDY: another file of claims",
    )
    parser.add_argument("--headlines", action="store_true", help="only the main claims of --claims")
    parser.add_argument("--out", type=Path, default=Path("runs/studies"), help="folder of studies")
    args = parser.parse_args(argv)
    if args.study is None and not args.claims:
        parser.error("the following arguments are required: study")
    if args.headlines and not args.claims:
        parser.error("--headlines: needs --claims")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, write the table, return the exit code. Raises UserError."""
    args = parse_args(argv)
    if args.claims:
        # Imported here, so that the help and refusals come at once.
        from guie.studies.claims import print_claims

        print_claims(args.study or CLAIMS, args.headlines, args.write)
        return 0
    plan = read_plan(args.study)
    # Imported here, so that the help and refusals come at once.
    from guie.studies.study import run_study

    return run_study(plan, args)


def _at_least_one(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]}: must be a number of 1 or more")
    return int(text)


if __name__ == "__main__":
    errors.run(lambda argv: sys.exit(main(argv)))
