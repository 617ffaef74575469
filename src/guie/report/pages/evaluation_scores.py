"""Score tables of the evaluation page, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guie.evaluation.protocols.base import Protocol
from guie.report.tables import COLUMNS, metric_title

Report = Mapping[str, Any]  # of a protocol, or of one part of it, as `run_models` returns it

MAIN = ("r_at_1", "mmp_at_5", "map_at_100")
MOST_METRICS = 8  # of a table; the R@k curve shows the rest
COUNTS = ("queries", "queries_without_positive")
OVER_ALL = {
    "mean": "mean over domains",
    "pooled": "all queries",
    "public": "public 30 %",
    "private": "private 70 %",
}


def score_tables(
    models: Mapping[str, Sequence[Report]], protocols: Sequence[Protocol]
) -> list[dict[str, Any]]:
    """Make a table for each part, in the order of the protocols.

    Keys: title, source, about (index and dimensions), columns (metric, and model if there are
    several), domains and over_all (rows), level (of the intervals, or None).

    Args:
        models: by name, one report per protocol.
    """
    tables = []
    for place, protocol in enumerate(protocols):
        parts = {name: reports[place]["parts"] for name, reports in models.items()}
        for part in next(iter(parts.values())):
            of_part = {name: own[part] for name, own in parts.items()}
            title = protocol.title if len(protocol.parts) == 1 else f"{protocol.title}: {part}"
            tables.append({"title": title, "source": protocol.source} | _table(of_part))
    return tables


def _table(models: Mapping[str, Report]) -> dict[str, Any]:
    reports = [*models.values()]
    first, several = reports[0], len(reports) > 1
    every = dict.fromkeys(key for scores in first["domains"].values() for key in scores)
    keys = [key for key in every if key not in COUNTS]
    if len(keys) > MOST_METRICS:
        keys = [key for key in keys if key in COLUMNS]
    if several:  # fewer metrics, for each model
        keys = [key for key in keys if key in MAIN] or keys[:2]

    def row(name: str, title: str) -> dict[str, Any]:
        cells: list[dict[str, Any]] = []
        for key in keys:
            found = [_cell(report, name, key) for report in reports]
            values = [cell["value"] for cell in found if cell["value"] is not None]
            best = max(values, default=None) if several else None
            cells += [cell | {"best": cell["value"] == best} for cell in found]
        counts = first["domains"].get(name, {})
        return {"name": title, "cells": cells, "counts": [counts.get(key) for key in COUNTS]}

    dims = ", ".join(dict.fromkeys(f"{report['dimension']}-D" for report in reports))
    return {
        "about": f"{first['index']} index, {dims}",
        "columns": [(metric_title(k), name if several else "") for k in keys for name in models],
        "domains": [row(name, name) for name in first["domains"]],
        "over_all": [row(name, title) for name, title in OVER_ALL.items() if first.get(name)],
        "level": first.get("intervals", {}).get("level"),
    }


def _cell(report: Report, name: str, key: str) -> dict[str, Any]:
    """Return a score and its confidence interval over classes."""
    scores, intervals = report, report.get("intervals", {})
    if name in report["domains"]:
        scores, intervals = report["domains"], intervals.get("domains", {})
    low, high = intervals.get(name, {}).get(key) or (None, None)
    if low is not None and low != low:  # NaN: with one class a domain there is no bootstrap
        low = high = None
    return {"value": scores[name].get(key), "low": low, "high": high}
