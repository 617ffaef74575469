"""What a study consists of: its rows, and the jobs of each, a training and a test each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guie.base.errors import UserError
from guie.config.base import read_written, validated
from guie.config.run import RunConfig
from guie.config.study import ScoredOn, StudyConfig
from guie.config.written import Written
from guie.evaluation.protocols import PROTOCOLS
from guie.studies.above import models
from guie.studies.composed import composed_jobs
from guie.studies.job import Job, Key, Row, rows_above
from guie.studies.unfolding import points, run_of


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
    intervals: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    def chosen(self, rows: Iterable[str] | None, seeds: Iterable[int] | None) -> list[Job]:
        """Jobs in the order of work: seed by seed, so that rows can be compared early; of a seed the
        jobs that need no other first.

        Raises UserError for a row or a seed that the study does not have.
        """
        names = _known(rows, [row.name for row in self.rows], "--only", "row")
        all_seeds = sorted({seed for _, seed, _ in self.jobs})
        wanted = _known(seeds, all_seeds, "--seeds", "seed")
        jobs = [job for job in self.jobs.values() if job.row in names and job.seed in wanted]
        return sorted(jobs, key=lambda j: (j.seed, bool(j.needs), j.fold is not None))

    def folds(self) -> dict[str, list[str]]:
        """Domains that are left out, by fold, where any row leaves some out."""
        return {name: domains for row in self.rows for name, domains in row.folds.items()}


def read_plan(path: Path) -> Plan:
    """Raises UserError with one line per fault: where it is written, value, what is allowed."""
    written = read_written(path)
    if not path.stem.strip("."):
        raise UserError(f"{path}: names a study, and its folder, by dots alone; rename it")
    study = validated(written, StudyConfig, variables=False)
    common = run_of(written)
    rows: list[Row] = []
    jobs: dict[Key, Job] = {}
    faults: list[str] = []
    for name, config in study.rows.items():
        own = written.value["rows"].value[name]
        folds = study.unseen if config.unseen else {}
        composed = own.get("compose") if config.compose is not None else None
        unfolded = list([(name, composed)] if composed else points(name, own, config.grid, common))
        for told, values in unfolded:
            seeds = config.seeds or study.seeds
            unseen = seeds if config.unseen is True else seeds[: config.unseen]
            row = Row(told, seeds, folds, unseen, config.why)
            if any(row.name == other.name for other in rows):
                faults.append(f"{own.told()}: a second row {row.name!r}; name one otherwise")
            rows.append(row)
            try:
                if composed:
                    found: Iterable[Job] = composed_jobs(row, values, jobs, common)
                else:
                    found = _jobs(row, values, study, jobs)
                jobs |= {job.key: job for job in found}
            except UserError as error:
                faults += str(error).splitlines()
        faults += _alike(own, [told for told, _ in unfolded], jobs)
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
    shown = study.costs, study.intervals
    return Plan(path, study.baseline, study.test, rows, jobs, protocols, *shown)


def _alike(own: Written, names: list[str], jobs: Mapping[Key, Job]) -> Iterable[str]:
    """What is wrong with a row that unfolds to the same run twice."""
    first: dict[str, str] = {}
    for (name, _, _), job in jobs.items():
        if name in names and first.setdefault(job.identity, name) != name:
            yield (
                f"{own.told()}: its grid makes one run of {first[job.identity]!r} and {name!r}; where"
                " stages set a key themselves, vary it there: stages.0.lr.classes"
            )


def _jobs(row: Row, values: Written, study: StudyConfig, above: Mapping[Key, Job]) -> Iterable[Job]:
    """Of all seeds and folds, some of them taught by jobs above. Raises UserError as `read_plan`."""
    whole = validated(values, RunConfig, variables=False)
    for seed in row.seeds:
        for _, _, fold in row.keys(seed):
            data = whole.data
            if fold is not None:
                left_out = {*data.leave_out, *row.folds[fold]}
                data = data.model_copy(update={"leave_out": sorted(left_out)})
            config = whole.model_copy(update={"seed": seed, "data": data})
            scored = study.test, tuple(study.protocols), study.intervals
            needs = rows_above(models(config), seed, fold, above, values)
            yield Job(row.name, seed, fold, config, *scored, needs=needs)


def _known(wanted: Iterable[Any] | None, there: list[Any], option: str, what: str) -> list[Any]:
    if wanted is None:
        return there
    unknown = [str(one) for one in wanted if one not in there]
    if unknown:
        raise UserError(f"{option}: no {what} {', '.join(unknown)}; --list shows them")
    return list(wanted)
