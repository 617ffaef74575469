"""The evaluation page of an embedding: one HTML file with scores and example pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from guie.evaluation import diagnosis
from guie.evaluation.bootstrap import Comparison, verdict
from guie.evaluation.files import as_units
from guie.evaluation.knn import Embeddings
from guie.evaluation.protocols.base import Part, Protocol
from guie.report.figures.style import PALETTE, domain_colors
from guie.report.pages import evaluation_charts as charts
from guie.report.pages.evaluation_pictures import Galleries, query_map
from guie.report.pages.html import Pictures, write_page
from guie.report.pages.published import comparable_tables
from guie.report.tables import COLUMNS, OVER_ALL, metric_title

Report = Mapping[str, Any]  # of a protocol, or of one part of it, as `run_models` returns it

ROWS = 200  # shown in a table; the rest are counted
MATRIX = 40  # domains of the confusion matrix
SECTIONS = {
    "scores": "Scores",
    "compared": "Side by side",
    "map": "Map",
    "mistakes": "Nearest wrong answers",
    "domains": "Confused domains",
    "classes": "Difficulty by class",
    "hubs": "Hubs",
    "recall": "Recall at k",
    "distances": "Distances",
    "published": "Published results",
}
MAIN = ("r_at_1", "mmp_at_5", "map_at_100")
MOST_METRICS = 8  # of a table; the R@k curve shows the rest
COUNTS = ("queries", "queries_without_positive")


def write_evaluation(
    path: str | Path,
    models: Mapping[str, Embeddings],
    reports: Mapping[str, Sequence[Report]],
    protocols: Sequence[Protocol],
    table: pd.DataFrame,
    root: str | Path | None,
    about: str = "",
) -> None:
    """Write the page that shows how good models are, and where they fail.

    Score tables cover every protocol. The detailed analysis covers the first protocol part whose
    relevance is defined by labels and whose index is fixed. Pictures show answers of the first model.

    Args:
        path: the HTML file.
        models: embeddings [T, D] by file; the first is analysed in detail, and compared with the others.
        reports: by file, one report of `run_models` per protocol; those of the first hold `against`.
        table: rows T of one split.
        root: folder that image_path is relative to; None omits all pictures.
        about: the evaluation's command or settings, for the page's head.

    Raises UserError if the file cannot be written. A picture that cannot be decoded is marked as such.
    """
    names = short_names(list(models))
    by_name = dict(zip(names, (reports[file] for file in models), strict=True))
    parts = (part for protocol in protocols for part in protocol.parts)
    part = next((one for one in parts if not (one.graded or one.gallery_draws)), None)
    picture = Pictures(root) if root else None
    values: dict[str, Any] = {
        "name": names[0],
        "others": names[1:],
        "about": about,
        "limit": ROWS,
        "tables": score_tables(by_name, protocols),
        "verdicts": [
            verdict(Comparison(**one), (other, names[0]), title)
            for report in by_name[names[0]]
            for other, against in zip(names[1:], report.get("against", []), strict=False)
            for title, one in against["differences"].items()
        ],
        "published": comparable_tables(by_name),
        "colors": domain_colors(table["domain"]),
        "palette": PALETTE,
        "kinds": charts.KINDS,
        "part": part,
    }
    if part is not None:
        vectors = {n: as_units(e, table) for n, e in zip(names, models.values(), strict=True)}
        values |= _analysis(vectors, part, table, values["colors"])
        values["map"] = query_map(values["near"], table, vectors[names[0]], picture)
    # `scores` is always there; the detailed sections where there is a part with classes
    absent = {key for key in ("compared", "map", "published") if not values.get(key)}
    absent |= set() if part else SECTIONS.keys() - {"scores", "published"}
    values["sections"] = {k: title for k, title in SECTIONS.items() if k not in absent}
    write_page(path, "evaluation.html.j2", values, picture)


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten file names to their shortest distinct endings, without `.npz` or `.parquet`.

    A single file keeps its folder, which is usually the run's name.
    """
    parts = [
        Path(name).with_suffix("").parts if name.endswith((".npz", ".parquet")) else (name,)
        for name in names
    ]
    least = 2 if len(parts) == 1 else 1
    for count in range(least, max(least, *map(len, parts)) + 1):
        ends = ["/".join(own[-count:]).replace("//", "/") for own in parts]
        if len(set(ends)) == len(ends):
            return ends
    return list(names)


def _analysis(
    vectors: Mapping[str, Embeddings], part: Part, table: pd.DataFrame, colors: Mapping[str, str]
) -> dict[str, Any]:
    """Return template values: the detailed analysis of one part."""
    nears = {name: diagnosis.nearest(part, table, units) for name, units in vectors.items()}
    (name, first), *others = nears.items()
    galleries = Galleries(first, table)
    classes = diagnosis.by_class(first, table)
    found = diagnosis.gaps(part, table, vectors[name], first)
    domains = charts.largest_domains(first, table)
    shares = diagnosis.domain_shares(first, table)
    shown = charts.largest_domains(first, table, MATRIX)
    answering = shown if len(shares) > len(shown) else list(shares.columns)
    return {
        "near": first,
        "classes": classes[:ROWS].to_dict("records"),
        "classes_found": len(classes),
        "confusions": diagnosis.class_confusions(first, table)[:ROWS].to_dict("records"),
        "shares": shares.loc[shown, answering],
        "domains_found": len(shares),
        "mistakes": galleries.mistakes(),
        "worst": galleries.worst(classes),
        "strays": galleries.strays(),
        "hubs": galleries.hubs(),
        "recalls": charts.recall_panels(nears, domains, table),
        "distances": charts.gap_panels(found, domains, table),
        "difficulty": charts.difficulty_panels(classes, domains, colors),
        "hub_chart": charts.occurrence_chart(nears),
        "hubness": {name: _rows(diagnosis.hubness(near, table)) for name, near in nears.items()},
        "compared": [
            {"name": other, "counts": _rows(diagnosis.outcomes(first, near, table))}
            | galleries.changed(near)
            for other, near in others
        ],
    }


def _rows(by_domain: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table by domain; the domain "" is that of all images."""
    named = by_domain.rename(index={"": "all images"})
    return named.rename_axis("domain").reset_index().to_dict("records")


def score_tables(
    models: Mapping[str, Sequence[Report]], protocols: Sequence[Protocol]
) -> list[dict[str, Any]]:
    """Make a table for each part, in the order of the protocols, from one report of each by model.

    Keys: title, source, about (index and dimensions), columns (metric, and model if there are
    several), domains and over_all (rows), level (of the intervals, or None).
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
