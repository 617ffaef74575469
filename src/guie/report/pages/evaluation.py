"""The evaluation page of an embedding: one HTML file with scores and example pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from guie.evaluation.bootstrap import Comparison, verdict
from guie.evaluation.diagnosis import by_class, class_confusions, domain_shares, hubness, outcomes
from guie.evaluation.protocols.base import Part, Protocol
from guie.report.figures.embeddings import KINDS
from guie.report.figures.style import PALETTE, domain_colors
from guie.report.pages.evaluation_pictures import (
    Galleries,
    difficulty_panels,
    gap_panels,
    largest_domains,
    occurrence_chart,
    query_map,
    recall_panels,
)
from guie.report.pages.evaluation_scores import (
    ModelAnswers,
    ModelReports,
    looked_into,
    looks,
    score_tables,
)
from guie.report.pages.html import Pictures, write_page
from guie.report.pages.published import beside

ROWS = 200  # shown in a table; the rest are counted
MATRIX = 40  # domains of the confusion matrix


def write_evaluation(
    path: str | Path,
    models: Sequence[ModelReports],
    protocols: Sequence[Protocol],
    table: pd.DataFrame,
    root: str | Path | None,
    about: str = "",
) -> None:
    """Write the page that shows how good models are, and where they fail.

    Score tables cover every protocol. The detailed analysis covers the first protocol part whose
    relevance is defined by labels. Pictures show the answers of the first model.

    Args:
        path: the HTML file.
        models: the first is analysed in detail, the others are compared with it.
        table: rows T of one split.
        root: folder that image_path is relative to; None omits all pictures.
        about: the evaluation's command or settings, for the page's head.

    Raises:
        UserError: the file cannot be written. A picture that cannot be decoded is marked as such.
    """
    part = looked_into(protocols)
    with tqdm(desc="page", unit="img", disable=None) as bar:
        folder = None if root is None else Path(root)
        values: dict[str, Any] = {
            "name": models[0].name,
            "others": [model.name for model in models[1:]],
            "about": about,
            "limit": ROWS,
            "tables": score_tables(models, protocols),
            "verdicts": _verdicts(models),
            "published": beside({model.name: model.reports for model in models}),
            "colors": domain_colors(table["domain"]),
            "palette": PALETTE,
            "kinds": KINDS,
            "picture": folder and Pictures(folder, bar),
            "part": part,
        }
        if part is not None:
            values |= _inside(models, part, table, folder, bar)
        values["sections"] = _sections(values)
        write_page(path, "evaluation.html.j2", values)


def _verdicts(models: Sequence[ModelReports]) -> list[str]:
    """Describe in words how the first model compares with each other one, for each protocol."""
    first, *others = models
    return [
        verdict(Comparison(**one), (other.name, first.name), title)
        for report in first.reports
        for other, against in zip(others, report.get("against", []), strict=False)
        for title, one in against["differences"].items()
    ]


def _inside(
    models: Sequence[ModelReports], part: Part, table: pd.DataFrame, root: Path | None, bar: tqdm
) -> dict[str, Any]:
    """Return template values: the detailed analysis of one part."""
    seen = looks(models, part, table)
    first, others = seen[0], seen[1:]
    galleries = Galleries(first.near, table)
    classes = by_class(first.near, table)
    domains = largest_domains(first, table)
    shares = domain_shares(first.near, table)
    shown = largest_domains(first, table, MATRIX)
    answering = shown if len(shares) > len(shown) else list(shares.columns)
    return {
        "near": first.near,
        "classes": classes[:ROWS].to_dict("records"),
        "classes_found": len(classes),
        "confusions": class_confusions(first.near, table)[:ROWS].to_dict("records"),
        "shares": shares.loc[shown, answering],
        "domains_found": len(shares),
        "mistakes": galleries.mistakes(),
        "worst": galleries.worst(classes),
        "strays": galleries.strays(),
        "hubs": galleries.hubs(),
        "map": query_map(first.near, table, models[0].embedded, root, bar),
        "recalls": recall_panels(seen, table),
        "distances": gap_panels(first, table),
        "difficulty": difficulty_panels(classes, domain_colors(table["domain"]), domains),
        "hub_chart": occurrence_chart(seen),
        "hubness": {look.name: _hubness(look, table) for look in seen},
        "compared": [_compared(first, other, table, galleries) for other in others],
    }


def _hubness(look: ModelAnswers, table: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the hubness table, and its foot."""
    spread = hubness(look.near, table).rename(index={"": "all images"})
    rows = spread.rename_axis("domain").reset_index().to_dict("records")
    return {"rows": rows[1:], "foot": rows[:1]}


def _compared(
    first: ModelAnswers, other: ModelAnswers, table: pd.DataFrame, galleries: Galleries
) -> dict[str, Any]:
    """Compare another model with the first: counts by domain, and queries that changed."""
    won, lost = galleries.changed(other.near)
    counts = outcomes(first.near, other.near, table).rename_axis("domain").reset_index()
    return {"name": other.name, "counts": counts.to_dict("records"), "won": won, "lost": lost}


def _sections(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of the page's sections, by id."""
    titles = {"scores": "Scores"}
    if values["part"] is not None:
        titles |= {"compared": "Side by side"} if values["compared"] else {}
        titles |= {"map": "Map"} if values["map"] else {}
        titles |= {
            "mistakes": "Nearest wrong answers",
            "domains": "Confused domains",
            "classes": "Difficulty by class",
            "hubs": "Hubs",
            "recall": "Recall at k",
            "distances": "Distances",
        }
    return titles | ({"published": "Published results"} if values["published"] else {})
