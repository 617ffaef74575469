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

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from guie.base import errors
from guie.base.arguments import count
from guie.studies.grid import read_plan

CLAIMS = Path(__file__).parents[1] / "configs/studies/claims.yaml"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("study", type=Path, nargs="?", help="YAML file, see configs/studies/")
    add("--jobs", type=count, default=1, help="runs in parallel (default: 1)")
    add("--only", nargs="+", metavar="ROW", help="run only these rows")
    add("--seeds", nargs="+", type=int, metavar="S", help="run only these seeds")
    add("--retry-failed", action="store_true", help="run failed runs again")
    add("--any-code", action="store_true", help="also count results of an older version")
    add("--list", action="store_true", help="only list the runs and their state")
    add("--table", action="store_true", help="only print the table of existing results")
    add("--write", type=Path, metavar="FILE", help="write the table between its markers in FILE")
    claims = "print the table of claims; STUDY: another file of claims"
    add("--claims", action="store_true", help=claims)
    add("--headlines", action="store_true", help="only the main claims of --claims")
    add("--out", type=Path, default=Path("runs/studies"), help="folder of studies")
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
        from guie.studies.claims import claims_table
        from guie.studies.table import write_between

        path = args.study or CLAIMS
        text = claims_table(path, args.headlines)
        print(text)
        if args.write:
            write_between(args.write, path.stem + "_headlines" * args.headlines, text)
        return 0
    plan = read_plan(args.study)
    # Imported here, so that the help and refusals come at once.
    from guie.studies.study import run_study

    return run_study(plan, args)


if __name__ == "__main__":
    errors.run(lambda argv: sys.exit(main(argv)))
