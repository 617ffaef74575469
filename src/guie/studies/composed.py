"""Rows of a study that train nothing: one model of several runs of other rows, by compose.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from guie.base.errors import UserError
from guie.config.base import validated
from guie.config.compose import ComposeConfig, ModelMember
from guie.config.written import Written
from guie.studies.job import Job, Key, Row, rows_above

OF_THE_STUDY = ("name", "out")  # which gives each its own
FREE = {*OF_THE_STUDY, "workers", "batch_size"}  # nothing depends on them


@dataclass(frozen=True)
class ComposedJob(Job):
    """A composition and its test; `config` is that of its first member, for the data's sake.

    Attributes: `made`, the composition, its members as written.
    """

    made: ComposeConfig = field(kw_only=True)

    @cached_property
    def training(self) -> dict[str, Any]:
        """All that the composition depends on besides code and data, its members' training too."""
        values = self.made.model_dump(mode="json", exclude_defaults=True, exclude=FREE)
        return {"composition": values, "members": self._trained, "seed": self.seed}


def composed_jobs(
    row: Row, written: Written, jobs: Mapping[Key, Job], common: Written
) -> Iterator[ComposedJob]:
    """Of all seeds and folds.

    Args:
        written: what the row says under `compose`.
        jobs: of the rows above.
        common: the config of every run, by whose val split a composition is scored if by no other.

    Raises UserError for a fault in the composition, or a member that is no row above or was not trained
    with such a seed or fold.
    """
    whole = _composition(written, common)
    for seed in row.seeds:
        for _, _, fold in row.keys(seed):
            members = rows_above(_models(whole), seed, fold, jobs, written)
            if not members:
                raise UserError(
                    f"{written.told()}: no member is a row above; of other models make it by compose.py"
                )
            first = next(iter(members.values()))
            scored = first.test, first.protocols, first.intervals
            made = _without(whole, row.folds[fold] if fold else [])
            yield ComposedJob(row.name, seed, fold, first.config, *scored, made=made, needs=members)


def with_folders(made: ComposeConfig, folders: Mapping[str, str], **keys: Any) -> dict[str, Any]:
    """The composition as compose.py reads it: in place of rows' names their folders."""

    def placed(key: str, value: Any) -> Any:
        return folders.get(value, value) if key == "model" else value

    return _changed(made, placed) | keys


def _composition(written: Written, common: Written) -> ComposeConfig:
    """What is written, under any name. Raises UserError."""
    for key in OF_THE_STUDY:
        if isinstance(written.value, dict) and key in written.value:
            raise UserError(f"{written.told((key,))}: is the study's to give")
    value = written.value
    if isinstance(value, dict):
        data = common.get("data")
        keys = {key: data.get(key) for key in ("manifest", "root")} if data else {}
        val = Written({key: item for key, item in keys.items() if item}, written.source)
        value = {"val": val, **value, "name": Written.of("study", written.source)}
    return validated(replace(written, value=value), ComposeConfig, variables=False)


def _models(made: ComposeConfig) -> Iterator[str]:
    for part in made.parts():
        yield from (m.model for m in part.members if isinstance(m, ModelMember))


def _without(made: ComposeConfig, left_out: list[str]) -> ComposeConfig:
    """Fitted and scored on the other domains."""

    def without(key: str, value: Any) -> Any:
        return sorted({*value, *left_out}) if key == "leave_out" else value

    return ComposeConfig.model_validate(_changed(made, without))


def _changed(made: ComposeConfig, change: Callable[[str, Any], Any]) -> dict[str, Any]:
    """The values of a composition, each as `change` of its key and itself has it."""

    def walk(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {own: walk(own, item) for own, item in value.items()}
        if isinstance(value, list) and key != "leave_out":
            return [walk(key, item) for item in value]
        return change(key, value)

    return walk("", made.model_dump())
