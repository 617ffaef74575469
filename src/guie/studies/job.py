"""A line of a study's table, and the jobs of each: a training and a test."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from guie.base.errors import UserError
from guie.config.run import RunConfig
from guie.config.study import ScoredOn
from guie.config.written import Written
from guie.training.run.folder import FREE

SLUG_CHARS = 60
OF_A_SEED = re.compile(r"(.+), seed (\d+)")

Key = tuple[str, int, str | None]  # row, seed, fold


@dataclass(frozen=True)
class Job:
    """One training and its test. `fold`: of the domains that it leaves out; None: it leaves out none.

    Attributes: `config`, `${NAME}` in it as written; `protocols`, by which it is scored besides;
    `intervals`, whether the test's are drawn; `needs`, jobs of rows above whose models it takes, its
    teachers or members, by the names that the row gives them.
    """

    row: str
    seed: int
    fold: str | None
    config: RunConfig
    test: ScoredOn
    protocols: tuple[str, ...] = ()
    intervals: bool = False
    needs: Mapping[str, Job] = field(default_factory=dict, kw_only=True)

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
        own = _bound(values) | {"seed": self.seed}
        return own | ({"teachers": self._trained} if self.needs else {})

    @property
    def _trained(self) -> dict[str, Any]:
        """What the models that it takes depend on."""
        return {name: job.training for name, job in self.needs.items()}

    @cached_property
    def identity(self) -> str:
        """12 hex digits of the training and of what it is tested on."""
        return digest([self.training, *self.scored])

    @property
    def scored(self) -> list[Any]:
        """All that its report depends on besides the model, as JSON."""
        drawn = ["intervals"] if self.intervals else []
        return [self.test.model_dump(mode="json"), *self.protocols, *drawn]

    def slug(self) -> str:
        """The job's name as a file may have it."""
        words = "".join(c if c.isalnum() and c.isascii() else "_" for c in self.row)[:SLUG_CHARS]
        return "_".join([words, str(self.seed), *([self.fold] if self.fold else [])])


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes: `folds`, domains that are left out, by fold, empty where it has none; `unseen`, the
    seeds that are trained without them, too.
    """

    name: str
    seeds: list[int]
    folds: dict[str, list[str]]
    unseen: list[int]
    why: str | None = None

    def keys(self, seed: int) -> list[Key]:
        """Of all jobs of a seed; the first sees every domain."""
        folds = self.folds if seed in self.unseen else {}
        return [(self.name, seed, fold) for fold in (None, *folds)]


def rows_above(
    names: Iterable[str],
    seed: int,
    fold: str | None,
    jobs: Mapping[Key, Job],
    written: Written,
) -> dict[str, Job]:
    """Of models named in a row those that are runs of rows above, by that name: `ROW`, or `ROW, seed 2`.

    Where no seed is named they have this one; they leave out the same fold.

    Raises UserError where a row has no run of that seed or fold.
    """
    rows = {name for name, _, _ in jobs}
    found: dict[str, Job] = {}
    for name in names:
        named = OF_A_SEED.fullmatch(name)
        key = (named[1], int(named[2]), fold) if named else None
        if name in rows:
            key = (name, seed, fold)
        if key is None or key[0] not in rows:
            continue
        if key not in jobs:
            told = f"seed {key[1]}" + (f" and without fold {fold}" if fold else "")
            raise UserError(f"{written.told()}: {key[0]} has no run of {told}; give both the same")
        found[name] = jobs[key]
    return found


def digest(value: Any) -> str:
    """12 hex digits of what JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _bound(values: Any) -> Any:
    """A config's values without those of which nothing depends."""
    if isinstance(values, dict):
        return {key: _bound(value) for key, value in values.items() if key not in FREE}
    return [_bound(value) for value in values] if isinstance(values, list) else values
