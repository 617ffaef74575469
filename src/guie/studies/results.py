"""Read and write a study's results with their code version: one job per line of a committed JSON file.

The file is next to the study's config.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from hashlib import file_digest
from pathlib import Path
from typing import Any

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.config.loading import expanded
from guie.studies.grid import Job, Plan, read_plan

SRC = Path(__file__).parents[2]
UNKNOWN = "unknown"
# Raise it whenever a change of the code changes the results of any study; older records then no longer count.
RESULT_VERSION = 1


@dataclass(frozen=True)
class Code:
    """The git tree of `src/`, and the checked-out commit; `dirty`: their trees differ.

    A commit that does not change `src/` keeps the tree, and so does committing existing changes.
    """

    src: str
    commit: str
    dirty: bool

    @property
    def description(self) -> str:
        """Return `1a2b3c4`, or `1a2b3c4 and changes`."""
        return self.commit[:7] + " and changes" * self.dirty


def code_of(src: Path = SRC) -> Code:
    """Return the code version; UNKNOWN outside a repository or without git."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {"GIT_INDEX_FILE": f"{folder}/index"}  # not the user's index

            def git(*words: str) -> str:
                command = ["git", "-C", str(src), *words]
                done = subprocess.run(command, capture_output=True, check=True, env=environment)
                return done.stdout.decode().strip()

            commit, tree = git("rev-parse", "HEAD", "HEAD:./").split()
            git("read-tree", "HEAD")
            git("add", "--all", ".")
            now = git("write-tree", f"--prefix={git('rev-parse', '--show-prefix')}")
    except (OSError, subprocess.CalledProcessError):
        return Code(UNKNOWN, UNKNOWN, dirty=False)
    return Code(now, commit, dirty=now != tree)


Record = dict[str, Any]
KEYS = {"row", "seed", "fold", "config", "version", "src", "commit", "dirty", "manifest"}
NEEDED = {"runs": KEYS | {"val", "test", "seconds"}, "failures": KEYS | {"step", "error"}}


@dataclass(frozen=True)
class Results:
    """Records by job identity; a later success replaces a failure."""

    runs: dict[str, Record] = field(default_factory=dict)
    failures: dict[str, Record] = field(default_factory=dict)


def results_path(study: Path) -> Path:
    """Return the path of a study's results: the study's own, ending in .json."""
    return study.with_suffix(".json")


def read_results(path: Path) -> Results:
    """Read the results; empty if there is no file. Raises UserError if it is not a results file."""
    if not path.exists():
        return Results()
    remedy = "restore the committed file, or delete it"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        lists = {key: {r["config"]: r for r in values[key]} for key in NEEDED}
        for key, needed in NEEDED.items():
            for lacking in (needed - line.keys() for line in lists[key].values()):
                if lacking:
                    names = ", ".join(sorted(lacking))
                    raise UserError(f"{path}: a line of {key} lacks {names}; {remedy}")
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {error.lineno}: not JSON: {error.msg}; {remedy}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: not a results file of a study; {remedy}") from None
    return Results(**lists)


def add_record(path: Path, record: Record) -> None:
    """Add a success or a failure to the file. Raises UserError if it cannot be written."""
    # Read again, for lines that a commit from another machine has added since
    there = read_results(path)
    identity = record["config"]
    if "error" in record:
        there.failures[identity] = record
    else:
        there.runs[identity] = record
        there.failures.pop(identity, None)
    # The bytes do not depend on the order of the results
    lists = [f'"{key}": [{_lines(getattr(there, key).values())}]' for key in NEEDED]
    write_text(path, "{\n" + ",\n".join(lists) + "\n}\n")


@dataclass(frozen=True)
class StudyStatus:
    """State of a study's jobs, by identity.

    Attributes: `done` and `failed`, which count; `outdated`, results of other code or another manifest,
    which do not count; `without_job`, how many results are of no job.
    """

    done: dict[str, Record]
    failed: dict[str, Record]
    outdated: dict[str, Record]
    without_job: int


def status(
    results: Results, jobs: Iterable[Job], any_code: bool, elsewhere: Iterable[Results] = ()
) -> StudyStatus:
    """Return which results count, including those of other studies, which may have the same runs.

    Args:
        any_code: also count results of an older RESULT_VERSION.
    """
    by_identity = {job.identity: job for job in jobs}

    def counts(identity: str, record: Record) -> bool:
        if identity not in by_identity or not (any_code or record["version"] == RESULT_VERSION):
            return False
        manifests = {record["manifest"], manifest_of(by_identity[identity])}
        return len(manifests) == 1 or UNKNOWN in manifests

    done = {i: record for i, record in results.runs.items() if counts(i, record)}
    for other in elsewhere:
        for i, record in other.runs.items():
            if i not in done and counts(i, record):
                row, seed, fold = by_identity[i].key
                done[i] = record | {"row": row, "seed": seed, "fold": fold}
    failed = {i: r for i, r in results.failures.items() if i not in done and counts(i, r)}
    outdated = {i: r for i, r in results.runs.items() if i in by_identity and i not in done}
    without_job = (results.runs | results.failures).keys() - by_identity
    return StudyStatus(done, failed, outdated, len(without_job))


def status_of(plan: Plan, any_code: bool) -> StudyStatus:
    """Return the status of a study, with results of the folder's other studies. Raises UserError."""
    own = results_path(plan.path)
    files = sorted({*own.parent.glob("*.json")} - {own})
    others = [read_results(file) for file in files if file.with_suffix(".yaml").exists()]
    return status(read_results(own), plan.jobs.values(), any_code, others)


def as_committed(study: Path) -> tuple[Plan, StudyStatus]:
    """Return a study and its results from any code version, including those of the folder's other studies.

    Its images are not needed. Raises UserError as `read_plan` and `read_results`.
    """
    plan = read_plan(study)
    return plan, status_of(plan, any_code=True)


def stamp(job: Job, code: Code) -> Record:
    """Return the record's fields on the job, its code and its data."""
    row, seed, fold = job.key
    return {
        **{"row": row, "seed": seed, "fold": fold, "config": job.identity},
        **{"version": RESULT_VERSION, "src": code.src, "commit": code.commit, "dirty": code.dirty},
        "manifest": manifest_of(job),
    }


def manifest_of(job: Job) -> str:
    """Return hashes of the manifests for training and test; `unknown` if a file is missing."""
    try:
        names = [job.config.data.manifest, job.study.test.manifest or job.config.data.manifest]
        files = [Path(expanded(name, "")) for name in dict.fromkeys(names)]
        return "+".join(_content(file, file.stat().st_mtime_ns) for file in files)
    except (UserError, OSError):
        return UNKNOWN


@cache
def _content(file: Path, changed_ns: int) -> str:
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()[:12]


def _lines(records: Iterable[Record]) -> str:
    ordered = sorted(records, key=lambda r: (r["row"], r["seed"], r["fold"] or "", r["config"]))
    lines = [json.dumps(record, sort_keys=True, ensure_ascii=False) for record in ordered]
    return "\n" + ",\n".join(lines) + "\n" if lines else ""
