"""What a study consists of: its rows, and the jobs of each, a training and a test each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from guie.base.errors import UserError
from guie.config.base import read_written, validated
from guie.config.run import RunConfig
from guie.config.study import ScoredOn, StudyConfig
from guie.config.written import Written
from guie.evaluation.protocols import PROTOCOLS
from guie.studies.unfolding import points, run_of
from guie.training.run.folder import FREE

SLUG_CHARS = 60

Key = tuple[str, int, str | None]  # row, seed, fold


@dataclass(frozen=True)
class Job:
    """One training and its test. `fold`: of the domains that it leaves out; None: it leaves out none.

    Attributes: `config`, `${NAME}` in it as written; `protocols`, by which it is scored besides.
    """

    row: str
    seed: int
    fold: str | None
    config: RunConfig
    test: ScoredOn
    protocols: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return self.row, self.seed, self.fold

    @property
    def told(self) -> str:
        """`arcface, seed 0`, or `arcface, seed 0 without fold A`."""
        fold = f" without fold {self.fold}" if self.fold else ""
        return f"{self.row}, seed {self.seed}{fold}"

    @cached_property
    def training(self) -> dict[str, Any]:
        """All that the training depends on besides code and data, whatever the job is called.

        Defaults are left out, so that a key of tomorrow does not make another run of this one.
        """
        values = self.config.model_dump(mode="json", exclude_defaults=True, exclude={"name", "out"})
        return _bound(values) | {"seed": self.seed}

    @cached_property
    def identity(self) -> str:
        """12 hex digits of the training and of what it is tested on."""
        return digest([self.training, self.test.model_dump(mode="json"), *self.protocols])

    def slug(self) -> str:
        """The job's name as a file may have it."""
        words = "".join(c if c.isalnum() and c.isascii() else "_" for c in self.row)[:SLUG_CHARS]
        return "_".join([words, str(self.seed), *([self.fold] if self.fold else [])])


@dataclass(frozen=True)
class Row:
    """A line of the table. `folds`: domains that are left out, by fold; empty where it has none."""

    name: str
    seeds: list[int]
    folds: dict[str, list[str]]
    why: str | None = None

    def keys(self, seed: int) -> list[Key]:
        """Of all jobs of a seed; the first sees every domain."""
        return [(self.name, seed, fold) for fold in (None, *self.folds)]


@dataclass(frozen=True)
class Plan:
    """A study as configured, unfolded."""

    path: Path
    baseline: str | None
    test: ScoredOn
    rows: list[Row]
    jobs: dict[Key, Job]
    protocols: tuple[str, ...] = ()
    costs: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    def chosen(self, rows: Iterable[str] | None, seeds: Iterable[int] | None) -> list[Job]:
        """Jobs in the order of work: seed by seed, so that rows can be compared early.

        Raises UserError for a row or a seed that the study does not have.
        """
        names = _known(rows, [row.name for row in self.rows], "--only", "row")
        all_seeds = sorted({seed for _, seed, _ in self.jobs})
        wanted = _known(seeds, all_seeds, "--seeds", "seed")
        jobs = [job for job in self.jobs.values() if job.row in names and job.seed in wanted]
        return sorted(jobs, key=lambda job: (job.seed, job.fold is not None))

    def folds(self) -> dict[str, list[str]]:
        """Domains that are left out, by fold, where any row leaves some out."""
        return {name: domains for row in self.rows for name, domains in row.folds.items()}


def read_plan(path: Path) -> Plan:
    """Raises UserError with one line per fault: where it is written, value, what is allowed."""
    written = read_written(path)
    study = validated(written, StudyConfig, variables=False)
    common = run_of(written)
    rows: list[Row] = []
    jobs: dict[Key, Job] = {}
    faults: list[str] = []
    for name, config in study.rows.items():
        own = written.value["rows"].value[name]
        folds = study.unseen if config.unseen else {}
        for unfolded, values in points(name, own, config.grid, common):
            row = Row(unfolded, config.seeds or study.seeds, folds, config.why)
            if any(row.name == other.name for other in rows):
                faults.append(f"{own.told()}: a second row {row.name!r}; name one otherwise")
            rows.append(row)
            try:
                jobs |= {job.key: job for job in _jobs(row, values, study)}
            except UserError as error:
                faults += str(error).splitlines()
    if study.baseline is not None and study.baseline not in [row.name for row in rows]:
        where = written.value["baseline"].told()
        faults.append(f"{where}: no row {study.baseline!r}; it is one of the rows")
    unknown = [name for name in study.protocols if name not in PROTOCOLS]
    if unknown:
        where = written.value["protocols"].told()
        faults.append(f"{where}: no protocol {unknown[0]!r}; known: {', '.join(PROTOCOLS)}")
    if faults:
        raise UserError("\n".join(dict.fromkeys(faults)))
    protocols = tuple(study.protocols)
    return Plan(path, study.baseline, study.test, rows, jobs, protocols, study.costs)


def digest(value: Any) -> str:
    """12 hex digits of what JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _bound(values: Any) -> Any:
    """A config's values without those of which nothing depends."""
    if isinstance(values, dict):
        return {key: _bound(value) for key, value in values.items() if key not in FREE}
    return [_bound(value) for value in values] if isinstance(values, list) else values


def _jobs(row: Row, values: Written, study: StudyConfig) -> Iterable[Job]:
    """Of all seeds and folds. Raises UserError as `read_plan`."""
    whole = validated(values, RunConfig, variables=False)
    for seed in row.seeds:
        for _, _, fold in row.keys(seed):
            data = whole.data
            if fold is not None:
                left_out = {*data.leave_out, *row.folds[fold]}
                data = data.model_copy(update={"leave_out": sorted(left_out)})
            config = whole.model_copy(update={"seed": seed, "data": data})
            yield Job(row.name, seed, fold, config, study.test, tuple(study.protocols))


def _known(wanted: Iterable[Any] | None, there: list[Any], option: str, what: str) -> list[Any]:
    if wanted is None:
        return there
    unknown = [str(one) for one in wanted if one not in there]
    if unknown:
        raise UserError(f"{option}: no {what} {', '.join(unknown)}; --list shows them")
    return list(wanted)
