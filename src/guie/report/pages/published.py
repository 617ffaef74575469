"""Published tables of papers to compare our scores with: `guie/report/published/*.yaml`."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict

from guie.config.loading import read_values
from guie.evaluation.protocols.catalogue import PROTOCOLS
from guie.report.tables import OVER_ALL

PERCENT = 100.0
Path = tuple[str, str, str]
Rows = dict[str, list[float | None]]  # by method or model, a number per column, or none


class Table(BaseModel):
    """One table of a paper, in percent.

    A paper's table is several of these if it covers several of our protocols, metrics or mixes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    where: str  # its number in the paper
    protocol: str  # ours that measures the same
    note: str = ""
    domains: tuple[str, ...] = ()  # those that its means are over, if its columns do not name them
    # By title, the path of our number in that protocol's report: part, then `mean`, `pooled`, `private` or a
    # domain, then metric. None: the protocol has no such number (parameters, scores of training classes)
    columns: dict[str, Path | None]
    rows: Rows
    spreads: dict[str, list[float]] = {}  # by method, the paper's ± of each number

    @property
    def covered(self) -> set[str]:
        """The domains that the table is about. Empty: it names none (the challenge's images)."""
        named = {*self.domains, *(path[1] for path in self.columns.values() if path)}
        return named - OVER_ALL.keys()


class Paper(BaseModel):
    """The tables of one paper."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paper: str
    tables: list[Table]


@cache
def papers() -> list[Paper]:
    """Read all papers, sorted by file name. Raises pydantic's ValidationError for an invalid file."""
    folder = files("guie.report").joinpath("published")
    found = sorted(folder.iterdir(), key=lambda file: file.name)
    return [Paper.model_validate(read_values(str(f)).plain) for f in found]


def comparable_tables(
    models: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[tuple[str, Table, Rows]]:
    """Return the published tables that our models can be compared with: paper, table, our rows.

    If one table of a paper has a number of ours, the paper's other tables of the same protocol are
    returned too, without rows of ours where nothing is comparable. See `_number` for what is. `models` has by
    name one report of `run_protocol` per protocol.
    """
    found = []
    for paper in papers():
        tables = []
        for table in paper.tables:
            ours = {}
            for name, reports in models.items():
                for report in (one for one in reports if one["protocol"] == table.protocol):
                    row = [_number(report, table, path) for path in table.columns.values()]
                    if any(number is not None for number in row):
                        ours[name] = row
            tables.append((paper.paper, table, ours))
        compared = {table.protocol for _, table, ours in tables if ours}
        found += [one for one in tables if one[1].protocol in compared]
    return found


def _number(report: Mapping[str, Any], table: Table, path: Path | None) -> float | None:
    """Return our number in percent, or None if there is no comparable one.

    An index of several domains that has a domain which the table lacks holds other images, so nothing
    of it compares. A number over all domains compares only if our domains are the table's.
    """
    if path is None:
        return None
    name, domain, metric = path
    part = report["parts"].get(name, {})
    domains = part.get("domains", {})
    indexes = {part.name: part.index for part in PROTOCOLS[table.protocol].parts}
    shared = indexes.get(name, "separate") != "separate"
    if shared and table.covered and domains.keys() - table.covered:
        return None
    if domain in OVER_ALL and table.covered and domains.keys() != table.covered:
        return None
    number = (part if domain in OVER_ALL else domains).get(domain, {}).get(metric)
    return None if number is None else PERCENT * number
