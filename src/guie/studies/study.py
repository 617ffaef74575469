"""Work through a study: run what is missing, and write its table; the work of study.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from guie.base.files import held, replacing, write_text
from guie.report.figures.scores import seed_dots
from guie.studies.grid import Job, Plan
from guie.studies.results import (
    Code,
    StudyStatus,
    add_record,
    code_of,
    read_results,
    results_path,
    stamp,
    status_of,
)
from guie.studies.runner import (
    Children,
    Failed,
    Outcome,
    Runner,
    gpus,
    look_at_images,
    threads_of_each,
    work_off,
)
from guie.studies.table import by_seed, decimal, ordered, rendered, scores, summary, write_between
from guie.training.process_guard import Interrupts

SCRIPTS = Path(__file__).parents[2]
PANELS = ("val R@1", "test R@1", "unseen R@1")
LOCK_WAIT_S = 20.0  # time for the runs of a killed study to save and end


def run_study(plan: Plan, args: argparse.Namespace) -> int:
    """Run what is missing, write the table, return the exit code. Raises UserError.

    Args:
        args: the arguments of study.py.
    """
    study = Study(plan, code_of(), args.any_code, args.out)
    jobs = study.plan.chosen(args.only, args.seeds)
    if args.list:
        now = study.status()
        states = {"done": now.done, "failed": now.failed, "other code": now.outdated}
        for job in jobs:
            state = next((s for s, those in states.items() if job.identity in those), "missing")
            print(f"{state:12}{job.identity}  {job.description}")
        return 0
    exit_code = 0 if args.table else run(study, jobs, args)
    now = study.status()
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
        logs = f"see the logs in {study.folder}, --retry-failed runs them again"
        tell(f"failed: {'; '.join(failed)}; {logs}")
    return exit_code or int(bool(failed))


@dataclass(frozen=True)
class Study:
    """A study and its results."""

    plan: Plan
    code: Code
    any_code: bool
    out: Path

    @property
    def folder(self) -> Path:
        """The folder of its runs."""
        return self.out / self.plan.name

    @property
    def results(self) -> Path:
        return results_path(self.plan.path)

    def status(self) -> StudyStatus:
        return status_of(self.plan, self.any_code)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Save and report the result of a job."""
        if isinstance(outcome, Failed):
            failure = {"step": outcome.step, "error": outcome.error}
            add_record(self.results, stamp(job, self.code) | failure)
            tell(f"{job.description}: failed: {outcome}")
        else:
            add_record(self.results, outcome)
            tell(f"{job.description}: test R@1 {decimal(outcome['test']['r_at_1'])}")
        write_text(self.folder / "table.md", rendered(self.plan, self.status()))

    def draw(self, now: StudyStatus) -> None:
        """Draw the table as a figure."""
        lines = scores(self.plan, now)
        order = ordered(summary(lines, None)).index
        values = by_seed(lines, order, {name: f"{name.split()[0]} r_at_1" for name in PANELS})
        if values:
            with replacing(self.folder / "table.png") as temporary:
                seed_dots(values, self.plan.study.baseline).savefig(temporary, dpi=100)


def run(study: Study, jobs: Sequence[Job], args: argparse.Namespace) -> int:
    """Run what is missing; return 0, or the exit code of a signal. Raises UserError."""
    taken = f"{study.folder}: another study.py uses this folder"
    lock_path, remedy = study.folder / ".lock", "wait, or choose another folder with --out"
    with held(lock_path, taken, remedy, LOCK_WAIT_S) as lock:
        known, before = read_results(study.results).runs, study.status()
        for identity, record in before.done.items():
            if known.get(identity) != record:
                tell(f"{record['row']}, seed {record['seed']}: reused from another study")
                add_record(study.results, record)
        settled = before.done if args.retry_failed else {**before.done, **before.failed}
        left = {job.identity: job for job in reversed(jobs) if job.identity not in settled}
        to_do = [job for job in jobs if left.get(job.identity) is job]
        if not to_do:
            return 0
        if study.code.dirty:
            tell(f"src/ differs from commit {study.code.commit[:7]}: records will say so")
        look_at_images(to_do)
        children, threads = Children(lock.fileno()), threads_of_each(args.jobs)
        runner = Runner(study.folder, SCRIPTS, children, study.code, code_of, threads, gpus())
        with Interrupts() as interrupts:
            if work_off(to_do, args.jobs, runner.run, study.ended, children.halt, interrupts):
                return 0
        tell(f"{study.folder}: stopped; run the same command to resume")
        return interrupts.exit_code


def tell(line: str) -> None:
    """Print a line on stderr, above a progress bar; stdout has only the table."""
    tqdm.write(line, file=sys.stderr)
