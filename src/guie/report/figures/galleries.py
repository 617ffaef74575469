"""Retrieval galleries: queries beside their nearest neighbours, right and wrong."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from guie.report.figures.pictures import canvas, heading, note, place, thumbnail
from guie.report.figures.style import IGNORED, INK, RIGHT, WRONG, domain_colors

LEFT, GAP, ROW = 0.35, 0.3, 1.42  # in thumbnails
NAME_CHARS = 15  # as wide as a thumbnail


def gallery(neighbours: pd.DataFrame, table: pd.DataFrame, root: Path) -> Figure:
    """A row a query: its picture, then its neighbours, nearest first, their distance below.

    Green frames share the query's label, red ones do not; faded ones lie beyond the first
    min(5, n), where n is the number of positives, and are not counted.

    Args:
        neighbours: rows of the scorer's `score.neighbours.csv`: query, rank, image_path, distance,
            relevant, counted; the queries are drawn in this order.
        table: the manifest's rows of that split: image_path, label, domain.
        root: folder of the images.
    """
    about = table.drop_duplicates("image_path").set_index("image_path")
    colors = domain_colors(table["domain"])
    queries = neighbours.groupby("query", sort=False)
    columns = LEFT + 1 + GAP + neighbours["rank"].max()
    figure, axes = canvas(columns, ROW * len(queries), width=0.9 * columns)
    for row, (query, found) in enumerate(queries):
        y = row * ROW + 0.04
        domain = about.loc[query, "domain"]
        heading(axes, LEFT / 2, y + 0.47, domain, colors[domain])
        place(axes, thumbnail(root / query), LEFT, y)
        note(axes, LEFT, y + 0.98, _class_name(about.loc[query, "label"]), INK)
        for neighbour in found.itertuples():
            x = LEFT + GAP + neighbour.rank
            _neighbour(axes, neighbour, about, root, x, y)
    return figure


def _neighbour(axes: Axes, neighbour, about: pd.DataFrame, root: Path, x: float, y: float) -> None:
    """One neighbour: framed by its verdict, which its sign repeats for the colour-blind."""
    frame, sign = (RIGHT, "✓") if neighbour.relevant else (WRONG, "✗")
    if not neighbour.counted:
        frame, sign = IGNORED, "·"
    picture = thumbnail(root / neighbour.image_path)
    place(axes, picture, x, y, frame=frame, faded=not neighbour.counted)
    name = _class_name(about.loc[neighbour.image_path, "label"])
    note(axes, x, y + 0.98, f"{sign} {neighbour.distance:.2f}\n{name}", frame)


def _class_name(label: str) -> str:
    """`domain/class` without the domain, in two lines as wide as a thumbnail."""
    name = label.split("|")[0].partition("/")[2] or label
    return textwrap.fill(name, NAME_CHARS, max_lines=2, placeholder="…")
