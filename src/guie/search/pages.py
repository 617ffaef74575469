"""Write result pages, each a single HTML file with embedded thumbnails."""

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

SHOWN = 200  # groups of copies shown on a page; the rest are counted
SIDE_PX = 320


def answers_page(
    path: Path, index: Index, asked: Sequence[tuple[str, Image.Image | None, list[Hit]]]
) -> None:
    """Write a page of queries (name, image; a text has no image) and their neighbours."""
    with tqdm(desc="page", unit="img", disable=None) as bar:
        values = {
            "asked": [
                (name, as_uri(picture) if picture else None, hits) for name, picture, hits in asked
            ],
            "facts": index.facts,
            "sure": describe(index.facts.sureness),
            "picture": Pictures(Path(index.facts.root), bar),
        }
        _write(path, "answers.html.j2", values)


def duplicates_page(path: Path, index: Index, found: pd.DataFrame) -> None:
    """Write a page of groups of copies and look-alikes, the largest first."""
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
    """Return a thumbnail as a JPEG data URI."""
    small = picture.copy()
    small.thumbnail((SIDE_PX, SIDE_PX))
    return f"data:image/jpeg;base64,{base64.b64encode(as_jpeg(small)).decode('ascii')}"


def as_jpeg(picture: Image.Image, quality: int = 80) -> bytes:
    """Encode only the pixels as JPEG, without metadata."""
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
    # a file name may contain bytes that are not UTF-8
    write_text(path, page.encode("utf-8", "backslashreplace").decode("utf-8"))
