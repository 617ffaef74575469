"""Pages of what was found: one HTML file each, with small pictures inside and nothing beside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from PIL import Image
from tqdm import tqdm

from guie.base.files import write_text
from guie.report.pages.html import Pictures
from guie.search.duplicates import KINDS
from guie.search.engines import describe
from guie.search.index import Index
from guie.search.searcher import Hit

SHOWN = 200  # groups of copies on a page; the rest are counted
SIDE_PX = 320


def answers_page(
    path: Path, index: Index, asked: Sequence[tuple[str, Image.Image, list[Hit]]]
) -> None:
    """Queries, by name and picture, and what each of them found."""
    with tqdm(desc="page", unit="img", disable=None) as bar:
        values = {
            "asked": [(name, as_uri(picture), hits) for name, picture, hits in asked],
            "facts": index.facts,
            "sure": describe(index.facts.sureness),
            "picture": Pictures(Path(index.facts.root), bar),
        }
        _write(path, "answers.html.j2", values)


def duplicates_page(path: Path, index: Index, found: pd.DataFrame) -> None:
    """Groups of copies and look-alikes, the largest first."""
    groups = [(number, rows.to_dict("records")) for number, rows in found.groupby("group")]
    with tqdm(desc="page", unit="img", disable=None) as bar:
        values = {
            "groups": groups[:SHOWN],
            "hidden": max(0, len(groups) - SHOWN),
            "pictures": len(found),
            "kinds": KINDS,
            "facts": index.facts,
            "picture": Pictures(Path(index.facts.root), bar),
        }
        _write(path, "duplicates.html.j2", values)


def as_uri(picture: Image.Image) -> str:
    """A small JPEG of it, as a data URI."""
    small = picture.copy()
    small.thumbnail((SIDE_PX, SIDE_PX))
    return f"data:image/jpeg;base64,{base64.b64encode(as_jpeg(small)).decode('ascii')}"


def as_jpeg(picture: Image.Image, quality: int = 80) -> bytes:
    """Its pixels, and nothing else that a file may hold."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, comment=b"")
    return buffer.getvalue()


def _write(path: Path, template: str, values: dict) -> None:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("guie.search"), PackageLoader("guie.search", "static")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(template).render(values)
    # a file's name may hold bytes that are no UTF-8
    write_text(path, page.encode("utf-8", "backslashreplace").decode("utf-8"))
