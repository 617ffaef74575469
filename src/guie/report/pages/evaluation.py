"""The evaluation page of an embedding: one HTML file with scores and example pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from guie.evaluation.bootstrap import Comparison, verdict
from guie.evaluation.diagnosis import (
    Nearest,
    by_class,
    class_confusions,
    domain_shares,
    gaps,
    hubness,
    nearest,
    outcomes,
)
from guie.evaluation.files import as_units
from guie.evaluation.knn import Embeddings
from guie.evaluation.protocols.base import Part, Protocol
from guie.report.figures.style import PALETTE, domain_colors
from guie.report.pages.evaluation_charts import (
    KINDS,
    difficulty_panels,
    gap_panels,
    largest_domains,
    occurrence_chart,
    recall_panels,
)
from guie.report.pages.evaluation_pictures import Galleries, query_map
from guie.report.pages.evaluation_scores import Report, score_tables
from guie.report.pages.html import Pictures, write_page
from guie.report.pages.published import comparable_tables

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

    Raises:
        UserError: the file cannot be written. A picture that cannot be decoded is marked as such.
    """
    names = short_names(list(models))
    by_name = dict(zip(names, (reports[file] for file in models), strict=True))
    parts = (part for protocol in protocols for part in protocol.parts)
    part = next((one for one in parts if not (one.graded or one.gallery_draws)), None)
    with tqdm(desc="page", unit="img", disable=None) as bar:
        values: dict[str, Any] = {
            "name": names[0],
            "others": names[1:],
            "about": about,
            "limit": ROWS,
            "tables": score_tables(by_name, protocols),
            "verdicts": _verdicts(names, by_name[names[0]]),
            "published": comparable_tables(by_name),
            "colors": domain_colors(table["domain"]),
            "palette": PALETTE,
            "kinds": KINDS,
            "picture": root and Pictures(Path(root), bar),
            "part": part,
        }
        if part is not None:
            vectors = {n: as_units(e, table) for n, e in zip(names, models.values(), strict=True)}
            values |= _analysis(vectors, part, table, values["colors"])
            values["map"] = query_map(values["near"], table, vectors[names[0]], root, bar)
        # `scores` is always there; the detailed sections where there is a part with classes
        absent = {key for key in ("compared", "map", "published") if not values.get(key)}
        absent |= set() if part else SECTIONS.keys() - {"scores", "published"}
        values["sections"] = {k: title for k, title in SECTIONS.items() if k not in absent}
        write_page(path, "evaluation.html.j2", values)


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


def _verdicts(names: Sequence[str], reports: Sequence[Report]) -> list[str]:
    """Describe in words how the first model compares with each other one, for each protocol."""
    return [
        verdict(Comparison(**one), (other, names[0]), title)
        for report in reports
        for other, against in zip(names[1:], report.get("against", []), strict=False)
        for title, one in against["differences"].items()
    ]


def _analysis(
    vectors: Mapping[str, Embeddings], part: Part, table: pd.DataFrame, colors: Mapping[str, str]
) -> dict[str, Any]:
    """Return template values: the detailed analysis of one part."""
    nears = {name: nearest(part, table, units) for name, units in vectors.items()}
    (name, first), *others = nears.items()
    galleries = Galleries(first, table)
    classes = by_class(first, table)
    domains = largest_domains(first, table)
    shares = domain_shares(first, table)
    shown = largest_domains(first, table, MATRIX)
    answering = shown if len(shares) > len(shown) else list(shares.columns)
    return {
        "near": first,
        "classes": classes[:ROWS].to_dict("records"),
        "classes_found": len(classes),
        "confusions": class_confusions(first, table)[:ROWS].to_dict("records"),
        "shares": shares.loc[shown, answering],
        "domains_found": len(shares),
        "mistakes": galleries.mistakes(),
        "worst": galleries.worst(classes),
        "strays": galleries.strays(),
        "hubs": galleries.hubs(),
        "recalls": recall_panels(nears, domains, table),
        "distances": gap_panels(gaps(part, table, vectors[name], first), domains, table),
        "difficulty": difficulty_panels(classes, domains, colors),
        "hub_chart": occurrence_chart(nears),
        "hubness": {name: _hubness(near, table) for name, near in nears.items()},
        "compared": [_compared(other, near, galleries) for other, near in others],
    }


def _hubness(near: Nearest, table: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the hubness table, and its foot."""
    spread = hubness(near, table).rename(index={"": "all images"})
    rows = spread.rename_axis("domain").reset_index().to_dict("records")
    return {"rows": rows[1:], "foot": rows[:1]}


def _compared(name: str, other: Nearest, galleries: Galleries) -> dict[str, Any]:
    """Compare another model with the first: counts by domain, and queries that changed."""
    won, lost = galleries.changed(other)
    counts = outcomes(galleries.near, other, galleries.table).rename_axis("domain").reset_index()
    return {"name": name, "counts": counts.to_dict("records"), "won": won, "lost": lost}
