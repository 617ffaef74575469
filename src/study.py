"""Many runs as one table: rows that change something of a run's config, by seeds, against a baseline.

python src/study.py configs/studies/losses.yaml                  # runs what is missing, then the table
python src/study.py configs/studies/losses.yaml --jobs 2 --only arcface supcon
python src/study.py configs/studies/losses.yaml --list
python src/study.py configs/studies/losses.yaml --table --write EXPERIMENTS.md

Each run is train.py, embed.py and validate.py. What comes of it is kept beside the config, in
configs/studies/<name>.json, by what the run's config says and by the code (git's tree of src/): nothing
is run twice, under whatever name, and what was killed goes on. Run folders, logs, table.md and table.png
lie in runs/studies/<name>/. A run that fails is kept as such and shown; the others go on.

exit code: 0 all is there; 1 some runs failed; 2 a fault in the study or an argument; 128 + the signal
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from guie.base import errors
from guie.base.files import held, replacing, write_text
from guie.report.figures.scores import seed_dots
from guie.studies.grid import Job, Plan, read_plan
from guie.studies.results import (
    Code,
    Record,
    Results,
    StudyStatus,
    code_of,
    read_results,
    results_path,
    stamp,
    standing,
)
from guie.studies.runner import (
    Children,
    Failed,
    Workshop,
    gpus,
    look_at_images,
    threads_of_each,
    work_off,
)
from guie.studies.table import by_seed, decimal, ordered, rendered, scores, summary, write_between
from guie.training.distributed import Interrupts

SCRIPTS = Path(__file__).parent
PANELS = ("val R@1", "test R@1", "unseen R@1")
LOCK_WAIT_S = 20.0  # of the runs of a killed study to save and leave


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="YAML file, see configs/studies/")
    parser.add_argument("--jobs", type=_at_least_one, default=1, help="runs at once (default: 1)")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="run these rows alone")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="S", help="run these seeds alone")
    parser.add_argument("--retry-failed", action="store_true", help="run what has failed again")
    parser.add_argument("--any-code", action="store_true", help="count results of other code too")
    parser.add_argument("--list", action="store_true", help="the runs and how they stand, no more")
    parser.add_argument("--table", action="store_true", help="the table of what is there, no more")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the table between its markers in there"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/studies"), help="folder of studies")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, write the table; returns the exit code. Raises UserError."""
    args = parse_args(argv)
    study = Study(read_plan(args.study), code_of(), args.any_code, args.out)
    jobs = study.plan.chosen(args.only, args.seeds)
    if args.list:
        print("\n".join(listed(jobs, study.standing())))
        return 0
    status = 0 if args.table else run(study, jobs, args)
    now = study.standing()
    text = rendered(study.plan, now)
    print(text)
    if args.write:
        write_between(args.write, study.plan.name, text)
    if args.table:
        return 0
    write_text(study.folder / "table.md", text)
    study.draw(now)
    failed = [job.description for job in jobs if job.identity in now.failed]
    if failed:
        tell(f"failed: {'; '.join(failed)}; see the logs in {study.folder}, --retry-failed runs"
             " them again")  # fmt: skip
    return status or int(bool(failed))


@dataclass(frozen=True)
class Study:
    """A study, and what of its results counts now."""

    plan: Plan
    code: Code
    any_code: bool
    out: Path

    @property
    def folder(self) -> Path:
        """Of its runs."""
        return self.out / self.plan.name

    def results(self) -> Results:
        return read_results(results_path(self.plan.path))

    def standing(self, results: Results | None = None) -> StudyStatus:
        """How its jobs stand. Raises UserError where a file of results is none."""
        own = results_path(self.plan.path)
        beside = [path for path in sorted(own.parent.glob("*.json")) if path != own]
        others = [read_results(path) for path in beside if path.with_suffix(".yaml").exists()]
        results = results or self.results()
        return standing(results, self.plan.jobs.values(), self.code, self.any_code, others)

    def ended(self, results: Results, job: Job, outcome: Record | Failed) -> None:
        """Keep what came of a job, and tell it."""
        if isinstance(outcome, Failed):
            results.fail(stamp(job, self.code) | {"step": outcome.step, "error": outcome.error})
            tell(f"{job.description}: failed: {outcome}")
        else:
            results.add(outcome)
            tell(f"{job.description}: test R@1 {decimal(outcome['test']['r_at_1'])}")
        write_text(self.folder / "table.md", rendered(self.plan, self.standing(results)))

    def draw(self, now: StudyStatus) -> None:
        """The table as a figure."""
        lines = scores(self.plan, now)
        order = ordered(summary(lines, None)).index
        values = by_seed(lines, order, {name: f"{name.split()[0]} r_at_1" for name in PANELS})
        if values:
            with replacing(self.folder / "table.png") as temporary:
                seed_dots(values, self.plan.baseline).savefig(temporary, dpi=100)


def run(study: Study, jobs: Sequence[Job], args: argparse.Namespace) -> int:
    """Work off what is missing; returns 0, or the exit code of a signal. Raises UserError."""
    said = f"{study.folder}: another study.py works there"
    lock_path, remedy = study.folder / ".lock", "wait, or name another folder by --out"
    with held(lock_path, said, remedy, LOCK_WAIT_S) as lock:
        results = study.results()
        before = study.standing(results)
        for identity, record in before.done.items():
            if results.runs.get(identity) != record:
                tell(f"{record['row']}, seed {record['seed']}: taken from another study")
                results.add(record)
        settled = before.done if args.retry_failed else {**before.done, **before.failed}
        left = {job.identity: job for job in reversed(jobs) if job.identity not in settled}
        to_do = [job for job in jobs if left.get(job.identity) is job]
        if not to_do:
            return 0
        if study.code.dirty:
            tell(f"src/ is not that of commit {study.code.commit[:7]}: results are of its own tree,"
                 f" {study.code.src[:7]}")  # fmt: skip
        look_at_images(to_do, study.folder)
        children = Children(lock.fileno())
        shop = Workshop(study.folder, SCRIPTS, children, study.code, code_of,
                        threads_of_each(args.jobs), gpus())  # fmt: skip
        with Interrupts() as interrupts:
            ended = partial(study.ended, results)
            if work_off(to_do, args.jobs, shop.do, ended, children.halt, interrupts):
                return 0
        tell(f"{study.folder}: stopped; the same command goes on")
        return interrupts.exit_code


def listed(jobs: Sequence[Job], now: StudyStatus) -> list[str]:
    """A line a job: how it stands, the identity of its results, its name."""
    states = {"done": now.done, "failed": now.failed, "other code": now.outdated}
    return [
        f"{next((s for s, those in states.items() if job.identity in those), 'missing'):12}"
        f"{job.identity}  {job.description}"
        for job in jobs
    ]


def tell(line: str) -> None:
    """On stderr, above a progress bar; the table alone is printed."""
    tqdm.write(line, file=sys.stderr)


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: is to be 1 or more")
    return int(text)


if __name__ == "__main__":
    errors.run(lambda argv: sys.exit(main(argv)))
