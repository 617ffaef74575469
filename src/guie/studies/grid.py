"""Expand a study's file into jobs: rows, grids, folds and seeds, and rows that need other rows."""

import copy
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from guie.base.errors import UserError
from guie.config.distillation import DistillationConfig
from guie.config.ensemble import ComposeConfig, ModelMember
from guie.config.loading import Values, merged, override, read_values, validated, with_base
from guie.config.study import EvaluateConfig, RowConfig, StudyConfig
from guie.config.training import FREE, RunConfig
from guie.evaluation.protocols.catalogue import PROTOCOLS

SLUG_CHARS = 60
OF_A_SEED = re.compile(r"(.+), seed (\+?)(\d+)")
IN_BRACES = re.compile(r"\{([\w.]+)\}")
# Keys that the study sets for each job, and where to set them instead
SET_BY_STUDY = {"name": "rows", "out": "--out", "seed": "seeds"}
NO_EFFECT = {"name", "out", "workers", "batch_size"}  # an ensemble does not depend on them

Key = tuple[str, int, str | None]  # row, seed, fold


@dataclass(frozen=True)
class Job:
    """One training, one ensemble of rows above, or another evaluation of them, and its test."""

    row: str
    seed: int
    fold: str | None  # of domains that it leaves out
    config: RunConfig  # `${NAME}` not expanded; of an ensemble, of its first member, for the data
    study: StudyConfig
    # Jobs of rows above that give teachers, members or evaluated models, by their names in the row
    needs: Mapping[str, "Job"] = field(default_factory=dict)
    ensemble: ComposeConfig | None = None  # as the next, with models as written
    evaluation: EvaluateConfig | None = None

    @property
    def description(self) -> str:
        """Return `arcface, seed 0`, or `arcface, seed 0 without fold A`."""
        fold = f" without fold {self.fold}" if self.fold else ""
        return f"{self.row}, seed {self.seed}{fold}"

    @cached_property
    def training(self) -> dict[str, Any]:
        """All that the model depends on, with teachers or members, except code, data and the job's name.

        Defaults are left out, so that a key added later does not change the identity of this job.
        """
        needed = {name: job.training for name, job in self.needs.items()}
        short: dict[str, Any] = {"mode": "json", "exclude_defaults": True}
        if self.ensemble:
            values = self.ensemble.model_dump(**short, exclude=NO_EFFECT)
            return {"composition": values, "members": needed, "seed": self.seed}
        if self.evaluation:
            values = self.evaluation.model_dump(**short)
            return {"evaluation": values, "models": needed, "seed": self.seed}

        def without_free(block: dict[str, Any]) -> dict[str, Any]:
            return {key: item for key, item in block.items() if key not in FREE}

        own = self.config.model_dump(**short, exclude={"name", "out"})
        more = {"seed": self.seed} | ({"teachers": needed} if needed else {})
        return rewritten(own, without_free) | more

    @cached_property
    def identity(self) -> str:
        """12 hex digits of a hash of the training and the test."""
        return digest([self.training, *self.scored])

    @property
    def scored(self) -> list[Any]:
        """All that its report depends on, except the model, as JSON."""
        drawn = ["intervals"] if self.study.intervals else []
        return [self.study.test.model_dump(mode="json"), *self.study.protocols, *drawn]

    @property
    def slug(self) -> str:
        """The job's name as part of a file name."""
        words = re.sub("[^a-zA-Z0-9]", "_", self.row)[:SLUG_CHARS]
        return "_".join([words, str(self.seed), *([self.fold] if self.fold else [])])


def digest(value: Any) -> str:
    """Return 12 hex digits of a hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    seeds: list[int]
    folds: dict[str, list[str]]  # domains left out by each, or empty
    unseen: list[int]  # seeds that are also trained without them

    def keys(self, seed: int) -> list[Key]:
        """Return the keys of all jobs of a seed; the first trains on every domain."""
        folds = self.folds if seed in self.unseen else {}
        return [(self.name, seed, fold) for fold in (None, *folds)]


@dataclass(frozen=True)
class Plan:
    """A study as configured, with grids expanded."""

    path: Path
    study: StudyConfig
    rows: list[Row]
    jobs: dict[Key, Job]

    @property
    def results(self) -> Path:
        """The file of results, next to the study's."""
        return self.path.with_suffix(".json")

    def chosen(self, rows: Collection[str] | None, seeds: Collection[int] | None) -> list[Job]:
        """Return jobs in the order they run.

        Seeds run one after the other, so that rows can be compared early. Within a seed, jobs that need
        no other come first. Raises UserError for an unknown row or seed.
        """
        jobs = [*self.jobs.values()]
        for name, wanted in (("row", rows), ("seed", seeds)):
            known = {getattr(job, name) for job in self.jobs.values()}
            if unknown := [str(one) for one in wanted or () if one not in known]:
                raise UserError(f"no {name} {', '.join(unknown)} in this study; --list shows them")
            jobs = [job for job in jobs if wanted is None or getattr(job, name) in wanted]
        return sorted(jobs, key=lambda j: (j.seed, bool(j.needs), j.fold is not None))

    def folds(self) -> dict[str, list[str]]:
        """Return the domains that each fold of any row leaves out."""
        return {name: domains for row in self.rows for name, domains in row.folds.items()}


def read_plan(path: Path) -> Plan:
    """Read a study. Raises UserError with one line per error: location, value, what is allowed."""
    values = read_values(path)
    study = validated(values, StudyConfig, variables=False)
    own = values.at("run")
    rest = {key: item for key, item in own.plain.items() if key != "base"}
    base = with_base(replace(own, plain={"base": own.plain.get("base")}))
    common = replace(base, plain={**base.plain, "name": "study"})  # in place of the runs' names
    common = _merged(common, replace(own, plain=rest))
    plan = Plan(path, study, [], {})
    where, known = values.location("protocols"), f"known: {', '.join(PROTOCOLS)}"
    unknown = [name for name in study.protocols if name not in PROTOCOLS]
    errors = [f"{where}: no protocol {name!r}; {known}" for name in unknown]
    for name, config in study.rows.items():
        try:
            _expand(plan, name, config, values.at("rows", name), common)
        except UserError as error:
            errors += str(error).splitlines()
    if not errors and study.baseline not in [None, *(row.name for row in plan.rows)]:
        where = values.location("baseline")
        errors.append(f"{where}: no row {study.baseline!r}; name one of the rows")
    if errors:
        raise UserError("\n".join(dict.fromkeys(errors)))
    return plan


def _expand(plan: Plan, name: str, config: RowConfig, own: Values, common: Values) -> None:
    """Add the rows that a row of the file expands to, and their jobs, to the plan. Raises UserError."""
    seeds = config.seeds or plan.study.seeds
    unseen = seeds if config.unseen is True else seeds[: config.unseen]
    first: dict[str, str] = {}
    for full_name, values in _points(name, config, own, common):
        row = Row(full_name, seeds, plan.study.unseen if config.unseen else {}, unseen)
        if any(row.name == other.name for other in plan.rows):
            raise UserError(f"{own.location()}: a second row {row.name!r}; rename one")
        plan.rows.append(row)
        kind: type[RunConfig | ComposeConfig]
        kind = RunConfig if config.compose is None else ComposeConfig
        whole = validated(values, kind, variables=False)
        where = (own if config.evaluate else values).location()
        for job in _jobs(plan, row, whole, config, where):
            if first.setdefault(job.identity, row.name) != row.name:
                both = f"{first[job.identity]!r} and {row.name!r} of its grid are the same run"
                remedy = "if a stage sets the key, vary it there, as stages.0.lr.classes"
                raise UserError(f"{own.location()}: {both}; {remedy}")
            plan.jobs[job.row, job.seed, job.fold] = job


def _points(
    name: str, config: RowConfig, own: Values, common: Values
) -> Iterator[tuple[str, Values]]:
    """Yield name and config of each row that this row of the file expands to. Raises UserError."""
    if config.evaluate:
        yield name, common
    elif config.compose is not None:  # scored on the runs' val split by default
        values = own.at("compose")
        _refuse_set_by_study(values)
        data = common.plain.get("data") or {}
        val = {key: data[key] for key in ("manifest", "root") if key in data}
        yield name, replace(values, plain={"val": val, **values.plain, "name": "study"})
    else:
        changes = {k: v for k, v in (own.plain or {}).items() if k not in RowConfig.model_fields}
        values = _merged(common, replace(own, plain=changes))
        for chosen in product(*config.grid.values()):
            point = dict(zip(config.grid, chosen, strict=True))
            full_name = _filled(name, point, config.grid, own.location())
            yield full_name, _set(values, point, f"{own.location()}.grid") if point else values


def _merged(common: Values, own: Values) -> Values:
    """Merge `own` into `common`; keys with dots work as in `--set`. Raises UserError."""
    _refuse_set_by_study(own)
    dotted = {key: item for key, item in own.plain.items() if "." in str(key)}
    rest = {key: item for key, item in own.plain.items() if key not in dotted}
    return _set(merged(common, replace(own, plain=rest)), dotted, own.location())


def _set(values: Values, settings: dict[str, Any], source: str) -> Values:
    """Return a copy, which shares no part with other rows, with these keys set. Raises UserError."""
    changed = Values(copy.deepcopy(values.plain), dict(values.places))
    for key, value in settings.items():
        override(changed, key, value, source)
    return changed


def _refuse_set_by_study(values: Values) -> None:
    for key, instead in SET_BY_STUDY.items():
        if key in values.plain:
            raise UserError(f"{values.location(key)}: the study sets it, by {instead}; remove it")


def _filled(name: str, point: dict[str, Any], grid: dict[str, list[Any]], where: str) -> str:
    """Fill the values into the row's name. Raises UserError if a key that varies is not in it."""
    used: set[str] = set()

    def value_of(braces: re.Match[str]) -> str:
        keys = [key for key in grid if f".{key}".endswith(f".{braces[1]}")]
        if len(keys) != 1:
            raise UserError(f"{where}: {braces[0]} in its name must match one key of its grid")
        used.add(keys[0])
        value = point[keys[0]]
        if isinstance(value, dict) and "name" in value:
            return str(value["name"])
        return f"{value:g}" if isinstance(value, float) else str(value)

    filled = IN_BRACES.sub(value_of, name) if grid else name
    for key in grid:
        if key not in used and len(grid[key]) > 1:
            braces = f"{{{key.rpartition('.')[2]}}}"
            raise UserError(f"{where}: its grid varies {key}; add {braces} to the row's name")
    return filled


def _jobs(
    plan: Plan, row: Row, whole: RunConfig | ComposeConfig, own: RowConfig, where: str
) -> Iterator[Job]:
    """Yield the jobs of all seeds and folds; jobs of rows above may be teachers, members or models.

    Raises UserError for a row above without that seed or fold, or an ensemble of no row above.
    """
    evaluation = own.evaluate
    if evaluation:
        names = [*evaluation.each().values()]
    elif isinstance(whole, ComposeConfig):
        parts = whole.parts()
        names = [m.model for part in parts for m in part.members if isinstance(m, ModelMember)]
    else:
        teachers = whole.task.teachers if isinstance(whole.task, DistillationConfig) else []
        names = [one.model for one in teachers] + ([whole.start_from] if whole.start_from else [])
    for seed in row.seeds:
        for _, _, fold in row.keys(seed):
            left_out = row.folds[fold] if fold is not None else []
            needs = _rows_above(names, seed, fold, plan.jobs, where)
            if isinstance(whole, ComposeConfig):
                if not needs:
                    raise UserError(f"{where}: no member is a row above; for others use compose.py")
                config = next(iter(needs.values())).config

                def leave_out(block: dict[str, Any], more: list[str] = left_out) -> dict[str, Any]:
                    if "leave_out" in block:
                        block["leave_out"] = sorted({*block["leave_out"], *more})
                    return block

                values = rewritten(whole.model_dump(), leave_out)
                ensemble = ComposeConfig.model_validate(values)
                yield Job(row.name, seed, fold, config, plan.study, needs, ensemble)
            else:
                data = whole.data
                if left_out and not evaluation:
                    domains = sorted({*data.leave_out, *left_out})
                    data = data.model_copy(update={"leave_out": domains})
                config = whole.model_copy(update={"seed": seed, "data": data})
                yield Job(row.name, seed, fold, config, plan.study, needs, evaluation=evaluation)


def _rows_above(
    names: Iterable[str], seed: int, fold: str | None, jobs: Mapping[Key, Job], where: str
) -> dict[str, Job]:
    """Return the models that are runs of rows above, by name: `ROW`, `ROW, seed 2`, or `ROW, seed +2`.

    Without a seed in the name, this seed is used; +2 is this seed and 2. The fold is always this one. Raises
    UserError if a row has no run of that seed or fold.
    """
    rows = {name for name, _, _ in jobs}
    found: dict[str, Job] = {}
    for name in names:
        key, named = (name, seed, fold), OF_A_SEED.fullmatch(name)
        if name not in rows and named:
            key = (named[1], int(named[3]) + (seed if named[2] else 0), fold)
        if key[0] not in rows:
            continue
        if key not in jobs:
            message = f"seed {key[1]}" + (f" and without fold {fold}" if fold else "")
            remedy = "give both rows the same seeds and folds"
            raise UserError(f"{where}: {key[0]} has no run of {message}; {remedy}")
        found[name] = jobs[key]
    return found


def rewritten(values: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return the values of a config with each mapping in them as `change` returns it, inner ones first."""
    return json.loads(json.dumps(values), object_hook=change)
