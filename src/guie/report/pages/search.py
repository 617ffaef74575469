"""Pages of search results and of groups of copies, each one HTML file with embedded thumbnails."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from guie.report.pages.html import Pictures, thumbnail, write_page

SHOWN = 200  # groups of copies shown on a page; the rest are counted
SIDE_PX = 320  # of a query


def answers_page(
    path: Path,
    root: Path,
    about: Mapping[str, Any],
    queries: Sequence[tuple[str, Image.Image | None, Sequence[Any]]],
) -> None:
    """Write a page of queries (name, image; a text has no image) and their neighbours.

    Args:
        about: `pictures`, `source`, `model` of the index, and `sure`, what a confidence means.
    """
    shown = [
        (name, thumbnail(picture, SIDE_PX).uri if picture else None, hits)
        for name, picture, hits in queries
    ]
    write_page(path, "answers.html.j2", {"queries": shown, "about": about}, Pictures(root))


def duplicates_page(
    path: Path, root: Path, about: Mapping[str, Any], found: pd.DataFrame, kinds: Mapping[str, str]
) -> None:
    """Write a page of groups of copies and look-alikes, the largest first."""
    groups = [(number, rows.to_dict("records")) for number, rows in found.groupby("group")]
    values = {
        "groups": groups[:SHOWN],
        "hidden": max(0, len(groups) - SHOWN),
        "pictures": len(found),
        "kinds": kinds,
        "about": about,
    }
    write_page(path, "duplicates.html.j2", values, Pictures(root))
