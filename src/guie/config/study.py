"""The config of a study: one run's config, and rows that each change something of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from guie.config.base import Config, ConfigError, Seed


def _counted(value: Any) -> Any:
    count = isinstance(value, int) and not isinstance(value, bool)
    return list(range(value)) if count else value


def _each_once(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("one of them stands there twice")
    return values


# A list, or how many, counted from 0
Seeds = Annotated[
    list[Seed],
    Field(min_length=1),
    BeforeValidator(_counted),
    AfterValidator(_each_once),
]
Domains = Annotated[list[str], Field(min_length=1), AfterValidator(_each_once)]


class ScoredOn(Config):
    """What the best weights of each run are tested on."""

    manifest: str | None = None  # null: the run's own
    root: str | None = None  # default: the manifest's folder; of the run's own manifest, its root
    split: Literal["val", "test"] = "test"
    index: Literal["merged", "separate"] = "merged"

    @model_validator(mode="after")
    def _root_of_what(self) -> ScoredOn:
        if self.root is not None and self.manifest is None:
            raise ConfigError("root", "is of another manifest, and there is none; set manifest too")
        return self


class RowConfig(Config):
    """What a row changes of the study's run; any other key is one of the run's config.

    A key with dots, `stages.0.lr.classes`, is set as `--set` would; a mapping is merged as over a base.
    """

    model_config = ConfigDict(extra="allow")

    why: str | None = None  # a line for those who read the file
    seeds: Seeds | None = None  # null: the study's
    # Trained without the domains of each of the study's folds, too; of a number, so many of its seeds
    unseen: bool | Annotated[int, Field(ge=1)] = False
    # One model of several, as a file of configs/compose/ without name and out: a member is the run of
    # a row above, by that row's name and with the same seed, by `NAME, seed 2` with another, or any
    # other model. No other key then. Teachers of a task distillation are named in the same way
    compose: dict[str, Any] | None = None
    # Values of keys of the run, by which it becomes a row for each combination of them. The row's
    # name has each in braces: `arcface, classes {lr.classes}` of `train.lr.classes: [.1, .3]`
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}

    @model_validator(mode="after")
    def _trains_or_composes(self) -> RowConfig:
        settings = [*(self.model_extra or {}), *(["grid"] if self.grid else [])]
        if self.compose is not None and settings:
            raise ConfigError(
                "compose", f"trains no run, and {settings[0]} is of one; drop one of the two"
            )
        return self


class StudyConfig(Config):
    """Rows x seeds, each a training and a test; read with `${NAME}` as it stands there."""

    run: dict[str, Any]  # as a run's config; with a base of its own, beside this file
    seeds: Seeds = [0]
    baseline: str | None = None  # the row that the others are compared with
    test: ScoredOn = ScoredOn()
    # Research protocols, as validate.py's --protocol, whose headlines are columns too
    protocols: Annotated[list[str], AfterValidator(_each_once)] = []
    costs: bool = False  # columns of how many parameters train, and of the memory of a run
    intervals: bool = False  # a column of the test's R@1: 95 %, over queries clustered by class
    unseen: dict[str, Domains] = {}  # a fold's name, and the domains that it leaves out
    rows: dict[str, Annotated[RowConfig, BeforeValidator(lambda row: {} if row is None else row)]]

    @model_validator(mode="after")
    def _is_of_rows(self) -> StudyConfig:
        if not self.rows:
            raise ConfigError("rows", "there is none")
        asks = next((name for name, row in self.rows.items() if row.unseen), None)
        if asks is not None and not self.unseen:
            raise ConfigError("unseen", f"names no fold, and row {asks!r} asks for them; add one")
        left_out = [domain for domains in self.unseen.values() for domain in domains]
        twice = sorted({domain for domain in left_out if left_out.count(domain) > 1})
        if twice:
            raise ConfigError(
                "unseen", f"{twice[0]} is left out by two folds; by which is it scored?"
            )
        return self
