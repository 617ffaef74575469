"""Published tables of papers to compare our scores with: `guie/report/published/*.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

PERCENT = 100.0
OVER_ALL = {"mean", "pooled", "public", "private"}


class Table(BaseModel):
    """One table of a paper, in percent.

    Attributes:
        where: its number in the paper.
        protocol: our protocol that measures the same.
        columns: by title, the path of our number in that protocol's report: part, then `mean`,
            `pooled`, `private` or a domain, then metric.
        rows: by method, one number per column; None if the paper has none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    where: str
    protocol: str
    note: str = ""
    columns: dict[str, tuple[str, str, str]]
    rows: dict[str, list[float | None]]

    @model_validator(mode="after")
    def _is_whole(self) -> Table:
        for name, numbers in self.rows.items():
            if len(numbers) != len(self.columns):
                raise ValueError(f"{name}: {len(numbers)} numbers for {len(self.columns)} columns")
        return self


class Paper(BaseModel):
    """The tables of one paper."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paper: str
    tables: list[Table]


class Beside(NamedTuple):
    """A table of a paper, and our models' rows in it, in percent."""

    paper: str
    table: Table
    ours: dict[str, list[float | None]]


def papers() -> list[Paper]:
    """Read all papers, sorted by file name. Raises pydantic's ValidationError for an invalid file."""
    folder = files("guie.report").joinpath("published")
    found = sorted(folder.iterdir(), key=lambda file: file.name)
    return [Paper.model_validate(yaml.safe_load(f.read_text(encoding="utf-8"))) for f in found]


def beside(models: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Beside]:
    """Return the published tables for the protocols and domains that our models were scored on.

    A table is omitted if our report has a domain that the table lacks, because the images differ.
    A column over all domains shows our number only if our report has all of them.

    Args:
        models: by name, the reports of `run_protocol`.
    """
    found = []
    for paper in papers():
        for table in paper.tables:
            ours = {
                name: [_ours(report, table, path) for path in table.columns.values()]
                for name, reports in models.items()
                for report in reports
                if report["protocol"] == table.protocol and _of_these(report, table)
            }
            if any(number is not None for row in ours.values() for number in row):
                found.append(Beside(paper.paper, table, ours))
    return found


def _domains(table: Table) -> set[str]:
    return {of for _, of, _ in table.columns.values()} - OVER_ALL


def _asked(report: Mapping[str, Any], table: Table) -> set[str]:
    """Return the domains of our report's parts that the table's columns refer to."""
    parts = {part for part, _, _ in table.columns.values()} & set(report["parts"])
    return {domain for part in parts for domain in report["parts"][part]["domains"]}


def _of_these(report: Mapping[str, Any], table: Table) -> bool:
    return not _domains(table) or _asked(report, table) <= _domains(table)


def _ours(report: Mapping[str, Any], table: Table, path: tuple[str, str, str]) -> float | None:
    """Return our number in percent, or None if there is no comparable one."""
    name, of, metric = path
    part = report["parts"].get(name, {})
    if of in OVER_ALL:
        whole = not _domains(table) or _asked(report, table) == _domains(table)
        number = part.get(of, {}).get(metric) if whole else None
    else:
        number = part.get("domains", {}).get(of, {}).get(metric)
    return None if number is None else PERCENT * number
