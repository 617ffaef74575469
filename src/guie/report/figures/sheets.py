"""Sheets of pictures from a manifest: what the domains look like."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from guie.report.figures.pictures import canvas, heading, note, place, thumbnail
from guie.report.figures.style import domain_colors

GAP = 0.22  # between classes, in thumbnails
MARGIN = 0.4  # for a row's heading
NOTED = 1.55  # a row with notes
NOTE_CHARS = 17  # as wide as a thumbnail


def contact_sheet(
    table: pd.DataFrame, root: Path, classes: int = 4, views: int = 3, seed: int = 0
) -> Figure:
    """A row a domain, a group of views a class; classes with that many images, drawn at random."""
    colors = domain_colors(table["domain"])
    groups = {
        domain: _sample_classes(rows, classes, views, seed)
        for domain, rows in table.groupby("domain")
    }
    figure, axes = canvas(MARGIN + classes * (views + GAP) - GAP, len(groups))
    for y, (domain, paths_of) in enumerate(groups.items()):
        heading(axes, MARGIN / 2, y + 0.47, domain, colors[domain])
        for c, paths in enumerate(paths_of):
            for v, path in enumerate(paths):
                place(axes, thumbnail(root / path), MARGIN + c * (views + GAP) + v, y)
    return figure


def captioned_sheet(table: pd.DataFrame, root: Path, columns: int = 5, seed: int = 0) -> Figure:
    """An image of each domain above its caption."""
    colors = domain_colors(table["domain"])
    rows = table.groupby("domain").sample(1, random_state=seed).reset_index(drop=True)
    height = 1.5
    figure, axes = canvas(columns * 1.05, height * -(-len(rows) // columns))
    for i, row in rows.iterrows():
        x, y = i % columns * 1.05 + 0.05, i // columns * height
        place(axes, thumbnail(root / row["image_path"], side_px=160), x, y + 0.02)
        note(axes, x, y + 1.0, row["domain"], colors[row["domain"]])
        note(axes, x, y + 1.1, textwrap.fill(row["caption"], 32))
    return figure


def noted_sheet(table: pd.DataFrame, root: Path, views: int = 1, columns: int = 8) -> Figure:
    """A row a heading, in the order that they first come: pictures with a note under each.

    Args:
        table: image_path, heading and note; what belongs together follows one another.
        root: folder of the images.
        views: so many pictures stand close, then a gap.
        columns: pictures of a heading that are shown, the first ones.
    """
    rows = table.groupby("heading", sort=False)
    width = MARGIN + columns + (-(-columns // views) - 1) * GAP
    figure, axes = canvas(width, NOTED * len(rows))
    for y, (name, shown) in enumerate(rows):
        heading(axes, MARGIN / 2, NOTED * y + 0.5, name)
        for i, picture in enumerate(shown.head(columns).itertuples()):
            x = MARGIN + i + i // views * GAP
            place(axes, thumbnail(root / picture.image_path), x, NOTED * y + 0.03)
            note(axes, x, NOTED * y + 1.0, textwrap.fill(picture.note, NOTE_CHARS))
    return figure


def _sample_classes(rows: pd.DataFrame, classes: int, views: int, seed: int) -> list[list[str]]:
    """Paths of `views` images of each of `classes` classes; fewer where there are not as many."""
    sizes = rows["label"].value_counts()
    large = sorted(sizes.index[sizes >= views])
    chosen = pd.Series(large, dtype=str).sample(min(classes, len(large)), random_state=seed)
    return [
        rows[rows["label"] == label].sample(views, random_state=seed)["image_path"].tolist()
        for label in chosen
    ]
