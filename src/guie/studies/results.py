"""Read and write a study's results with their code version, in the JSON file next to its config."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import file_digest
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.errors import UserError
from guie.base.files import read_json, write_text
from guie.config.loading import expanded
from guie.studies.grid import Job, Plan, read_plan
from guie.training.run_folder import METRICS_FILE, VAL, read_metrics, read_summary

SRC = Path(__file__).parents[2]
UNKNOWN = "unknown"
# Raise it whenever a change of the code changes the results of any study; older records then no longer count.
RESULT_VERSION = 1
METRICS = ("r_at_1", "mmp_at_5")
DIGITS = 5

Record = dict[str, Any]


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


@dataclass(frozen=True)
class Results:
    """Records by job identity; a later success replaces a failure."""

    runs: dict[str, Record] = field(default_factory=dict)
    failures: dict[str, Record] = field(default_factory=dict)


def read_results(path: Path) -> Results:
    """Read the results; empty if there is no file. Raises UserError if it is not a results file."""
    if not path.exists():
        return Results()
    remedy = "restore the committed file, or delete it"
    values = read_json(path, remedy)
    try:
        lists = ({line["config"]: line for line in values[key]} for key in ("runs", "failures"))
        return Results(*lists)
    except (KeyError, TypeError):
        raise UserError(f"{path}: not a results file of a study; {remedy}") from None


def add_record(path: Path, record: Record) -> None:
    """Add a success or a failure to the file. Raises UserError if it cannot be written."""
    results = read_results(path)  # again: a commit from another machine may have added lines
    if "error" in record:
        results.failures[record["config"]] = record
    else:
        results.runs[record["config"]] = record
        results.failures.pop(record["config"], None)

    def lines(records: Iterable[Record]) -> str:
        # The bytes do not depend on the order of the results
        ordered = sorted(records, key=lambda r: (r["row"], r["seed"], r["fold"] or "", r["config"]))
        texts = [json.dumps(record, sort_keys=True, ensure_ascii=False) for record in ordered]
        return "\n" + ",\n".join(texts) + "\n" if texts else ""

    runs, failures = lines(results.runs.values()), lines(results.failures.values())
    write_text(path, f'{{\n"runs": [{runs}],\n"failures": [{failures}]\n}}\n')


@dataclass(frozen=True)
class StudyStatus:
    """State of a study's jobs, by identity."""

    done: dict[str, Record]
    failed: dict[str, Record]
    outdated: dict[str, Record]  # of other code or another manifest, which do not count
    without_job: int  # number of results that belong to no job

    def of(self, job: Job) -> str:
        """Return the state of a job: done, failed, outdated or missing."""
        states = {"done": self.done, "failed": self.failed, "outdated": self.outdated}
        return next((name for name, those in states.items() if job.identity in those), "missing")


def status_of(plan: Plan, any_code: bool = False) -> StudyStatus:
    """Return which results count, with those of the folder's other studies, which may have the same runs.

    `any_code` also counts results of an older RESULT_VERSION. Raises UserError as `read_results`.
    """
    jobs = {job.identity: job for job in plan.jobs.values()}

    def counted(records: Mapping[str, Record]) -> dict[str, Record]:
        found = {}
        for identity, record in records.items():
            if identity in jobs and (any_code or record["version"] == RESULT_VERSION):
                manifests = {record["manifest"], manifest_of(jobs[identity])}
                if len(manifests) == 1 or UNKNOWN in manifests:
                    found[identity] = record
        return found

    path = plan.results
    own = read_results(path)
    done = counted(own.runs)
    for other in sorted({*path.parent.glob("*.json")} - {path}):
        if other.with_suffix(".yaml").exists():
            for identity, record in counted(read_results(other).runs).items():
                job = jobs[identity]
                keys = {"row": job.row, "seed": job.seed, "fold": job.fold}
                done.setdefault(identity, record | keys)
    failed = {i: r for i, r in counted(own.failures).items() if i not in done}
    outdated = {i: r for i, r in own.runs.items() if i in jobs and i not in done}
    return StudyStatus(done, failed, outdated, len((own.runs | own.failures).keys() - jobs))


def as_committed(study: Path) -> tuple[Plan, StudyStatus]:
    """Return a study and its results from any code version; its images are not needed. Raises UserError."""
    plan = read_plan(study)
    return plan, status_of(plan, any_code=True)


def stamp(job: Job, code: Code) -> Record:
    """Return the record's fields on the job, its code and its data."""
    own = {"row": job.row, "seed": job.seed, "fold": job.fold, "config": job.identity}
    return own | asdict(code) | {"version": RESULT_VERSION, "manifest": manifest_of(job)}


def manifest_of(job: Job) -> str:
    """Return hashes of the manifests for training and test; `unknown` if a file is missing."""
    try:
        names = [job.config.data.manifest, job.study.test.manifest or job.config.data.manifest]
        files = [Path(expanded(name, "")) for name in dict.fromkeys(names)]
        return "+".join(_hash(file, file.stat().st_mtime_ns) for file in files)
    except (UserError, OSError):
        return UNKNOWN


@cache
def _hash(file: Path, changed_ns: int) -> str:
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()[:12]


def scores_of_run(job: Job, folder: Path, report: Path) -> Record:
    """Read the record of a finished run: best step, scores on val and test, time and memory.

    validate.py wrote the report, and `protocols_` and `val_` reports next to it. Raises the errors of reading
    invalid files.
    """
    scores = json.loads(report.read_text(encoding="utf-8"))
    summary = {"best": None} if job.evaluation else read_summary(folder)
    best = summary["best"]
    test = _rounded(scores["mean"]) | {"domains": _by_domain(scores["domains"])}
    test["classes"] = hits_of_classes(report.with_suffix(".csv"))
    if interval := scores.get("intervals", {}).get("mean", {}).get("r_at_1"):
        test["interval"] = [round(end, DIGITS) for end in interval]
    val: Record | None = None
    if job.evaluation:
        on_val = json.loads(report.with_name(f"val_{report.name}").read_text(encoding="utf-8"))
        val = _rounded(on_val["mean"]) | {"domains": _by_domain(on_val["domains"], METRICS[:1])}
    elif best:
        lines = read_metrics(folder / METRICS_FILE)
        line = next(line for line in lines if VAL in line and line["step"] == best["step"])
        found = {key.removeprefix("val_"): v for key, v in line.items() if "val_" in key}
        domains = {key.partition("/")[2]: {"r_at_1": found[key]} for key in found if "/" in key}
        means = [key for key in found if "/" not in key]
        val = _rounded(found, means) | {"domains": _by_domain(domains, METRICS[:1])}
    record = {"best_step": best and best["step"], "val": val, "test": test}
    costs = ("seconds", "device", "peak_memory_mb", "peak_gpu_memory_mb", "trainable_parameters")
    record |= {key: summary.get(key) for key in costs}
    if names := job.study.protocols:
        path = report.with_name(f"protocols_{report.name}")
        reports = json.loads(path.read_text(encoding="utf-8"))["protocols"]
        headlines = {name: reports[name]["headline"] for name in names}
        record["protocols"] = {name: _rounded(line, line) for name, line in headlines.items()}
    return record


def hits_of_classes(path: Path) -> dict[str, dict[str, list[int]]]:
    """Return, by domain, the R@1 hits and the queries of each class, in the order of the classes."""
    queries = pd.read_csv(
        path,
        usecols=["domain", "class", "r_at_1"],
        dtype={"domain": str, "class": str},
        keep_default_na=False,  # a class may be called NA
        na_values={"r_at_1": [""]},
    )
    counts = queries.groupby(["domain", "class"])["r_at_1"].agg(["sum", "count"]).astype(int)
    return {
        str(domain): {"hits": of_domain["sum"].tolist(), "queries": of_domain["count"].tolist()}
        for domain, of_domain in counts.groupby("domain")
    }


def _by_domain(scores: Mapping[str, Any], keys: Iterable[str] = METRICS) -> Record:
    return {domain: _rounded(values, keys) for domain, values in scores.items()}


def _rounded(scores: Mapping[str, Any], keys: Iterable[str] = METRICS) -> Record:
    return {key: None if scores[key] is None else round(scores[key], DIGITS) for key in keys}
