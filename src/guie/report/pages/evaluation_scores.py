"""Score tables with intervals, and the nearest neighbours that each model returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from guie.evaluation.diagnosis import Gaps, Nearest, gaps, nearest
from guie.evaluation.files import Embeddings, as_units
from guie.evaluation.protocols.base import Part, Protocol
from guie.report.tables import COLUMNS, metric_title

Report = Mapping[str, Any]  # of one part, as `run_protocol` returns it


@dataclass(frozen=True)
class ModelReports:
    """One model with its reports for the protocols of the page.

    Attributes:
        name: the model's name on the page.
        reports: one `run_protocol` report per protocol; those of the first model hold `against`.
        embedded: unit vectors [T, D], or those of each domain's specialist.
    """

    name: str
    reports: Sequence[Mapping[str, Any]]
    embedded: Embeddings


@dataclass(frozen=True)
class ModelAnswers:
    """A model's answers in the protocol part that the page analyses."""

    name: str
    near: Nearest
    gaps: Gaps


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten file names to their shortest distinct endings, without `.npz` or `.parquet`.

    A single file keeps its folder, which is usually the run's name.
    """
    parts = [
        Path(name).with_suffix("").parts if name.endswith((".npz", ".parquet")) else (name,)
        for name in names
    ]
    if len(parts) == 1:
        return ["/".join(parts[0][-2:]).replace("//", "/")]
    for count in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(own[-count:]) for own in parts]
        if len(set(ends)) == len(ends):
            return ends
    return list(names)


def judged_models(
    models: Mapping[str, Embeddings],
    reports: Mapping[str, Sequence[Mapping[str, Any]]],
    table: pd.DataFrame,
) -> list[ModelReports]:
    """Combine models and the reports of `run_models`, both by file, under short names."""
    names = short_names(list(models))
    return [
        ModelReports(name, reports[file], as_units(given, table))
        for name, (file, given) in zip(names, models.items(), strict=True)
    ]


def looked_into(protocols: Sequence[Protocol]) -> Part | None:
    """Return the first part with binary relevance by labels and a fixed index, or None."""
    parts = (part for protocol in protocols for part in protocol.parts)
    return next((part for part in parts if not (part.graded or part.gallery_draws)), None)


def looks(models: Sequence[ModelReports], part: Part, table: pd.DataFrame) -> list[ModelAnswers]:
    """Search again with all models, and keep their nearest neighbours."""
    found = []
    for model in models:
        near = nearest(part, table, model.embedded)
        found.append(ModelAnswers(model.name, near, gaps(part, table, model.embedded, near)))
    return found


def query_domains(near: Nearest, table: pd.DataFrame) -> np.ndarray:
    """Return the domain of each query, [Q]."""
    return table["domain"].to_numpy()[near.query_Q]


MAIN = ("r_at_1", "mmp_at_5", "map_at_100")
MOST_METRICS = 8  # of a table; the R@k curve shows the rest
COUNTS = ("queries", "queries_without_positive")
OVER_ALL = {
    "mean": "mean over domains",
    "pooled": "all queries",
    "public": "public 30 %",
    "private": "private 70 %",
}


class Cell(NamedTuple):
    """A score, its confidence interval over classes, and whether it is the best of all models."""

    value: float | None
    low: float | None
    high: float | None
    best: bool = False


def score_tables(
    models: Sequence[ModelReports], protocols: Sequence[Protocol]
) -> list[dict[str, Any]]:
    """Make a table for each part, in the order of the protocols.

    Keys: title, source, about (index and dimensions), columns (metric, and model if there are
    several), domains and over_all (rows), level (of the intervals, or None).
    """
    return [
        _table(
            protocol, part, {model.name: model.reports[place]["parts"][part] for model in models}
        )
        for place, protocol in enumerate(protocols)
        for part in models[0].reports[place]["parts"]
    ]


def _table(protocol: Protocol, part: str, reports: Mapping[str, Report]) -> dict[str, Any]:
    first, several = next(iter(reports.values())), len(reports) > 1
    keys = _main(_metrics(first)) if several else _metrics(first)
    dims = ", ".join(dict.fromkeys(f"{report['dimension']}-D" for report in reports.values()))
    return {
        "title": protocol.title if len(protocol.parts) == 1 else f"{protocol.title}: {part}",
        "source": protocol.source,
        "about": f"{first['index']} index, {dims}",
        "columns": [(metric_title(k), name if several else "") for k in keys for name in reports],
        "domains": [_row(name, name, keys, list(reports.values())) for name in first["domains"]],
        "over_all": [
            _row(name, title, keys, list(reports.values()))
            for name, title in OVER_ALL.items()
            if first.get(name)
        ],
        "level": first.get("intervals", {}).get("level"),
    }


def _metrics(report: Report) -> list[str]:
    every = (key for scores in report["domains"].values() for key in scores)
    keys = [key for key in dict.fromkeys(every) if key not in COUNTS]
    return keys if len(keys) <= MOST_METRICS else [key for key in keys if key in COLUMNS]


def _main(keys: list[str]) -> list[str]:
    """Return the metrics for comparing several models: those in `MAIN`, or else the first two."""
    return [key for key in keys if key in MAIN] or keys[:2]


def _row(name: str, title: str, keys: list[str], reports: Sequence[Report]) -> dict[str, Any]:
    """Make a row: name, cells (of each metric, then model), queries and those without a positive."""
    cells: list[Cell] = []
    for key in keys:
        found = [_cell(report, name, key) for report in reports]
        most = max((cell.value for cell in found if cell.value is not None), default=None)
        if len(found) > 1 and most is not None:
            found = [cell._replace(best=cell.value == most) for cell in found]
        cells += found
    counts = reports[0]["domains"].get(name, {})
    queries, without_positive = (counts.get(key) for key in COUNTS)
    row = {"name": title, "cells": cells}
    return row | {"queries": queries, "without_positive": without_positive}


def _cell(report: Report, name: str, key: str) -> Cell:
    scores, intervals = report, report.get("intervals", {})
    if name in report["domains"]:
        scores, intervals = report["domains"], intervals.get("domains", {})
    low, high = intervals.get(name, {}).get(key) or (None, None)
    if low is not None and low != low:  # NaN: with one class a domain there is no bootstrap
        low = high = None
    return Cell(scores[name].get(key), low, high)
