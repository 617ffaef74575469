"""Expand a study's file into jobs: rows, grids, folds and seeds, and rows that need other rows."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
SET_BY_THE_STUDY = {"name", "out"}  # for each job
NO_EFFECT = {*SET_BY_THE_STUDY, "workers", "batch_size"}  # an ensemble does not depend on them

Key = tuple[str, int, str | None]  # row, seed, fold


@dataclass(frozen=True)
class Job:
    """One training, one ensemble of rows above, or another evaluation of them, and its test.

    Attributes: `fold` of domains that it leaves out, None for none; `config`, with `${NAME}` not expanded,
    of an ensemble that of its first member, for the data settings; `needs`, jobs of rows above that give
    its teachers, members or evaluated models, by their names in the row; `ensemble` and `evaluation`, its
    config, with models as written.
    """

    row: str
    seed: int
    fold: str | None
    config: RunConfig
    study: StudyConfig
    needs: Mapping[str, Job] = field(default_factory=dict)
    ensemble: ComposeConfig | None = None
    evaluation: EvaluateConfig | None = None

    @property
    def key(self) -> Key:
        return self.row, self.seed, self.fold

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
        values = self.config.model_dump(**short, exclude=SET_BY_THE_STUDY)
        own = _bound(values) | {"seed": self.seed}
        return own | ({"teachers": needed} if needed else {})

    @cached_property
    def identity(self) -> str:
        """12 hex digits of a hash of the training and the test."""
        return digest([self.training, *self.scored])

    @property
    def scored(self) -> list[Any]:
        """All that its report depends on, except the model, as JSON."""
        drawn = ["intervals"] if self.study.intervals else []
        return [self.study.test.model_dump(mode="json"), *self.study.protocols, *drawn]

    def slug(self) -> str:
        """Return the job's name as part of a file name."""
        words = "".join(c if c.isalnum() and c.isascii() else "_" for c in self.row)[:SLUG_CHARS]
        return "_".join([words, str(self.seed), *([self.fold] if self.fold else [])])

    def written(self, folders: Mapping[str, str], workers: int, **keys: Any) -> dict[str, Any]:
        """Return the config for train.py or compose.py, with run folders in place of row names.

        Args:
            workers: loader processes, unless the study sets them.
        """

        def placed(key: str, value: Any) -> Any:
            if key == "workers" and value is None:
                return workers
            return folders.get(value, value) if key in ("model", "start_from") else value

        return _changed(self.ensemble or self.config, placed) | keys


def digest(value: Any) -> str:
    """Return 12 hex digits of a hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _bound(values: Any) -> Any:
    """Return the config's values without the keys that do not affect the result."""
    if isinstance(values, dict):
        return {key: _bound(value) for key, value in values.items() if key not in FREE}
    return [_bound(value) for value in values] if isinstance(values, list) else values


def _changed(
    config: RunConfig | ComposeConfig, change: Callable[[str, Any], Any]
) -> dict[str, Any]:
    """Return the config's values, each replaced by `change(key, value)`; `leave_out` is one value."""

    def walk(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {own: walk(own, item) for own, item in value.items()}
        if isinstance(value, list) and key != "leave_out":
            return [walk(key, item) for item in value]
        return change(key, value)

    return walk("", config.model_dump())


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes: `folds`, the domains left out by each fold, empty if it has none; `unseen`, the seeds that
    are also trained without them.
    """

    name: str
    seeds: list[int]
    folds: dict[str, list[str]]
    unseen: list[int]

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
    def name(self) -> str:
        return self.path.stem

    def chosen(self, rows: Iterable[str] | None, seeds: Iterable[int] | None) -> list[Job]:
        """Return jobs in the order they run.

        Seeds run one after the other, so that rows can be compared early. Within a seed, jobs that need
        no other come first. Raises UserError for an unknown row or seed.
        """
        names = _known(rows, [row.name for row in self.rows], "--only", "row")
        all_seeds = sorted({seed for _, seed, _ in self.jobs})
        wanted = _known(seeds, all_seeds, "--seeds", "seed")
        jobs = [job for job in self.jobs.values() if job.row in names and job.seed in wanted]
        return sorted(jobs, key=lambda j: (j.seed, bool(j.needs), j.fold is not None))

    def folds(self) -> dict[str, list[str]]:
        """Return the domains that each fold of any row leaves out."""
        return {name: domains for row in self.rows for name, domains in row.folds.items()}


def _known(wanted: Iterable[Any] | None, there: list[Any], option: str, what: str) -> list[Any]:
    if wanted is None:
        return there
    unknown = [str(one) for one in wanted if one not in there]
    if unknown:
        raise UserError(f"{option}: no {what} {', '.join(unknown)}; --list shows them")
    return list(wanted)


def read_plan(path: Path) -> Plan:
    """Read a study. Raises UserError with one line per error: location, value, what is allowed."""
    written = read_values(path)
    if not path.stem.strip("."):
        raise UserError(f"{path}: the name of a study must not be only dots; rename the file")
    study = validated(written, StudyConfig, variables=False)
    common = _common(written)
    rows: list[Row] = []
    jobs: dict[Key, Job] = {}
    faults: list[str] = []
    for name, config in study.rows.items():
        own = written.at("rows", name)
        seeds = config.seeds or study.seeds
        unseen = seeds if config.unseen is True else seeds[: config.unseen]
        composed = own.at("compose") if config.compose is not None else None
        of_models = config.compose is not None or config.evaluate is not None
        points = [(name, composed or common)] if of_models else _points(name, own, config, common)
        first: dict[str, str] = {}
        for full_name, values in points:
            row = Row(full_name, seeds, study.unseen if config.unseen else {}, unseen)
            if any(row.name == other.name for other in rows):
                faults.append(f"{own.location()}: a second row {row.name!r}; rename one")
            rows.append(row)
            try:
                whole = (
                    _composition(values, common)
                    if composed
                    else validated(values, RunConfig, variables=False)
                )
                where = (own if config.evaluate else values).location()
                for job in [*_jobs(row, whole, config, where, study, jobs)]:
                    jobs[job.key] = job
                    if first.setdefault(job.identity, row.name) != row.name:
                        both = f"{first[job.identity]!r} and {row.name!r} of its grid"
                        remedy = "if a stage sets the key, vary it there, as stages.0.lr.classes"
                        faults.append(f"{own.location()}: {both} are the same run; {remedy}")
            except UserError as error:
                faults += str(error).splitlines()
    if study.baseline is not None and study.baseline not in [row.name for row in rows]:
        where = written.location("baseline")
        faults.append(f"{where}: no row {study.baseline!r}; name one of the rows")
    for name in study.protocols:
        if name not in PROTOCOLS:
            where = written.location("protocols")
            faults.append(f"{where}: no protocol {name!r}; known: {', '.join(PROTOCOLS)}")
    if faults:
        raise UserError("\n".join(dict.fromkeys(faults)))
    return Plan(path, study, rows, jobs)


def _jobs(
    row: Row,
    whole: RunConfig | ComposeConfig,
    row_config: RowConfig,
    where: str,
    study: StudyConfig,
    above: Mapping[Key, Job],
) -> Iterator[Job]:
    """Yield the jobs of all seeds and folds; jobs above may be teachers, members or evaluated models.

    Raises UserError for a row above without that seed or fold, or an ensemble of no row above.
    """
    evaluation = row_config.evaluate
    names: list[str] = []
    if evaluation:
        names = [*evaluation.each().values()]
    elif isinstance(whole, ComposeConfig):
        parts = whole.parts()
        names = [m.model for part in parts for m in part.members if isinstance(m, ModelMember)]
    else:
        if isinstance(whole.task, DistillationConfig):
            names = [one.model for one in whole.task.teachers]
        names += [whole.start_from] if whole.start_from else []
    for seed in row.seeds:
        for _, _, fold in row.keys(seed):
            left_out = row.folds[fold] if fold is not None else []
            needs = _rows_above(names, seed, fold, above, where)
            if isinstance(whole, RunConfig):
                data = whole.data
                if left_out and not evaluation:
                    domains = sorted({*data.leave_out, *left_out})
                    data = data.model_copy(update={"leave_out": domains})
                config = whole.model_copy(update={"seed": seed, "data": data})
                yield Job(row.name, seed, fold, config, study, needs, evaluation=evaluation)
            elif needs:
                config = next(iter(needs.values())).config
                ensemble = _without(whole, left_out)
                yield Job(row.name, seed, fold, config, study, needs, ensemble)
            else:
                raise UserError(f"{where}: no member is a row above; for others use compose.py")


def _rows_above(
    names: Iterable[str], seed: int, fold: str | None, jobs: Mapping[Key, Job], where: str
) -> dict[str, Job]:
    """Return the models that are runs of rows above, by name: `ROW`, `ROW, seed 2`, or `ROW, seed +2`.

    Without a seed in the name, this seed is used; +2 is this seed and 2. The fold is always this one.

    Raises UserError if a row has no run of that seed or fold.
    """
    rows = {name for name, _, _ in jobs}
    found: dict[str, Job] = {}
    for name in names:
        named = OF_A_SEED.fullmatch(name)
        if name in rows:
            key = (name, seed, fold)
        elif named and named[1] in rows:
            key = (named[1], int(named[3]) + (seed if named[2] else 0), fold)
        else:
            continue
        if key not in jobs:
            message = f"seed {key[1]}" + (f" and without fold {fold}" if fold else "")
            raise UserError(
                f"{where}: {key[0]} has no run of {message}; give both rows the same seeds and folds"
            )
        found[name] = jobs[key]
    return found


def _composition(written: Values, common: Values) -> ComposeConfig:
    """Validate a `compose` section, with a placeholder name; scored on the runs' val split by default."""
    _refuse_own(written)
    data = common.plain.get("data") or {}
    val = {key: data[key] for key in ("manifest", "root") if key in data}
    named = replace(written, plain={"val": val, **written.plain, "name": "study"})
    return validated(named, ComposeConfig, variables=False)


def _without(ensemble: ComposeConfig, left_out: list[str]) -> ComposeConfig:
    """Return the config to fit and score on the other domains."""
    changed = _changed(
        ensemble, lambda key, value: sorted({*value, *left_out}) if key == "leave_out" else value
    )
    return ComposeConfig.model_validate(changed)


# Set by the study for each run
OF_THE_STUDY = {"name": "rows", "out": "--out", "seed": "seeds"}
IN_BRACES = re.compile(r"\{([\w.]+)\}")


def _common(study: Values) -> Values:
    """Return the common config of all runs, with its base applied. Raises UserError."""
    own = study.at("run")
    rest = {key: item for key, item in own.plain.items() if key != "base"}
    base = with_base(replace(own, plain={"base": own.plain.get("base")}))
    common = replace(base, plain={**base.plain, "name": "study"})  # in place of the runs' names
    return _overridden(common, replace(own, plain=rest))


def _points(
    name: str, row: Values, config: RowConfig, common: Values
) -> Iterator[tuple[str, Values]]:
    """Yield name and config of each row that this row's grid expands to. Raises UserError."""
    settings = {k: v for k, v in (row.plain or {}).items() if k not in RowConfig.model_fields}
    values = _overridden(common, replace(row, plain=settings))
    for chosen in product(*config.grid.values()):
        point = dict(zip(config.grid, chosen, strict=True))
        full_name = _named(name, point, config.grid, row.location())
        yield full_name, _set(values, point, f"{row.location()}.grid") if point else values


def _overridden(common: Values, own: Values) -> Values:
    """Merge `own` into `common`; keys with dots work as in `--set`. Raises UserError."""
    _refuse_own(own)
    dotted = {key: item for key, item in own.plain.items() if "." in str(key)}
    rest = {key: item for key, item in own.plain.items() if key not in dotted}
    return _set(merged(common, replace(own, plain=rest)), dotted, own.location())


def _set(values: Values, settings: dict[str, Any], source: str) -> Values:
    # Other rows share parts of it
    changed = Values(copy.deepcopy(values.plain), dict(values.places))
    for key, value in settings.items():
        override(changed, key, value, source)
    return changed


def _refuse_own(written: Values) -> None:
    for key, instead in OF_THE_STUDY.items():
        if key in written.plain:
            raise UserError(f"{written.location(key)}: the study sets it, by {instead}; remove it")


def _named(name: str, point: dict[str, Any], grid: dict[str, list[Any]], where: str) -> str:
    """Fill the values into the row's name. Raises UserError if a key that varies is not in it."""
    used: set[str] = set()

    def value_of(braces: re.Match[str]) -> str:
        meant = [key for key in grid if f".{key}".endswith(f".{braces[1]}")]
        if len(meant) != 1:
            raise UserError(f"{where}: {braces[0]} in its name must match one key of its grid")
        used.add(meant[0])
        value = point[meant[0]]
        if isinstance(value, dict) and "name" in value:
            return str(value["name"])
        return f"{value:g}" if isinstance(value, float) else str(value)

    filled = IN_BRACES.sub(value_of, name) if grid else name
    silent = next((key for key in grid if key not in used and len(grid[key]) > 1), None)
    if silent is not None:
        short = silent.rpartition(".")[2]
        raise UserError(f"{where}: its grid varies {silent}; add {{{short}}} to the row's name")
    return filled
