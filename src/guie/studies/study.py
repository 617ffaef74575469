"""Work through a study: run what is missing, and write its table; the work of study.py."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from guie.base.files import held, replacing, write_text
from guie.report.figures import seed_dots
from guie.studies.grid import Job, Plan
from guie.studies.results import Record, StudyStatus, add_record, code_of, read_results, status_of
from guie.studies.runner import Children, Runner, cores_of_each, decode_images
from guie.studies.table import by_seed, decimal, ordered, rendered, scores, summary, write_between
from guie.training.process_guard import Interrupts

PANELS = ("val R@1", "test R@1", "unseen R@1")
LOCK_WAIT_S = 20.0  # time for the runs of a killed study to save and end


def run_study(plan: Plan, args: argparse.Namespace) -> int:
    """Run what is missing, write the table, return the exit code. Raises UserError.

    Args:
        args: the arguments of study.py.
    """
    name = plan.path.stem
    jobs, folder = plan.chosen(args.only, args.seeds), args.out / name
    if args.list:
        status = status_of(plan, args.any_code)
        for job in jobs:
            print(f"{status.of(job):12}{job.identity}  {job.description}")
        return 0
    exit_code = 0 if args.table else run_missing(plan, jobs, folder, args)
    status = status_of(plan, args.any_code)
    text = rendered(plan, status)
    print(text)
    if args.write:
        write_between(args.write, name, text)
    if args.table:
        return 0
    write_text(folder / "table.md", text)
    draw(plan, status, folder / "table.png")
    failed = [job.description for job in jobs if job.identity in status.failed]
    if failed:
        logs = f"see the logs in {folder}, --retry-failed runs them again"
        say(f"failed: {'; '.join(failed)}; {logs}")
    return exit_code or int(bool(failed))


def run_missing(plan: Plan, jobs: Sequence[Job], folder: Path, args: argparse.Namespace) -> int:
    """Run what is missing; return 0, or the exit code of a signal. Raises UserError."""
    code, results = code_of(), plan.results

    def save(job: Job, record: Record) -> None:
        add_record(results, record)
        if "error" in record:
            say(f"{job.description}: failed: {record['step']}: {record['error']}")
        else:
            say(f"{job.description}: test R@1 {decimal(record['test']['r_at_1'])}")
        write_text(folder / "table.md", rendered(plan, status_of(plan, args.any_code)))

    used = f"{folder}: another study.py uses this folder"
    remedy = "wait, or choose another folder with --out"
    with held(folder / ".lock", used, remedy, LOCK_WAIT_S) as lock:
        own, before = read_results(results).runs, status_of(plan, args.any_code)
        for identity, record in before.done.items():
            if own.get(identity) != record:
                say(f"{record['row']}, seed {record['seed']}: reused from another study")
                add_record(results, record)
        finished = {*before.done, *([] if args.retry_failed else before.failed)}
        # Of jobs with one identity, such as two rows of equal configs, the first
        first = {job.identity: job for job in reversed(jobs) if job.identity not in finished}
        missing = [job for job in jobs if first.get(job.identity) is job]
        if not missing:
            return 0
        if code.dirty:
            say(f"src/ differs from commit {code.commit[:7]}: records will say so")
        decode_images(missing)
        runner = Runner(folder, Children(cores_of_each(args.jobs), lock.fileno()), code)
        with Interrupts() as interrupts:
            if runner.run_all(missing, args.jobs, save, interrupts):
                return 0
        say(f"{folder}: stopped; run the same command to resume")
        return interrupts.exit_code


def draw(plan: Plan, status: StudyStatus, path: Path) -> None:
    """Draw the table as a figure."""
    lines = scores(plan, status)
    order = ordered(summary(lines, None)).index
    values = by_seed(lines, order, {name: f"{name.split()[0]} r_at_1" for name in PANELS})
    if values:
        with replacing(path) as temporary:
            seed_dots(values, plan.study.baseline).savefig(temporary, dpi=100)


def say(line: str) -> None:
    """Print a line on stderr, above a progress bar; stdout has only the table."""
    tqdm.write(line, file=sys.stderr)
