"""A contact sheet of a drawn set: a row for each domain, a few views of each of a few classes."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from toydomains.files import replacing

CELL, GAP, NAMES, CLASSES, VIEWS = 112, 10, 92, 4, 4


def contact_sheet(manifest: Path, out: Path) -> None:
    """Write the sheet of a manifest's classes with the most views, in the format of `out`'s suffix."""
    table = pd.read_csv(manifest)
    domains = list(dict.fromkeys(table["domain"]))
    width = NAMES + CLASSES * (VIEWS * CELL + GAP)
    sheet = Image.new("RGB", (width, len(domains) * (CELL + GAP) + GAP), (250, 248, 244))
    for row, domain in enumerate(domains):
        y = GAP + row * (CELL + GAP)
        font = ImageFont.load_default(size=13)
        ImageDraw.Draw(sheet).text((8, y + CELL // 2 - 8), domain, fill=(60, 60, 70), font=font)
        rows = table[table["domain"] == domain]
        for column, label in enumerate(rows["label"].value_counts(sort=True).index[:CLASSES]):
            x = NAMES + column * (VIEWS * CELL + GAP)
            paths = rows.loc[rows["label"] == label, "image_path"].head(VIEWS)
            _paste_views(sheet, [manifest.parent / path for path in paths], x, y)
    with replacing(out) as temporary:
        sheet.save(temporary)


def can_be_written(out: Path) -> bool:
    """Return whether Pillow writes colour pictures in the format of `out`'s suffix."""
    try:
        kind = Image.registered_extensions()[out.suffix.lower()]
        Image.new("RGB", (1, 1)).save(io.BytesIO(), kind)
    except (KeyError, OSError, ValueError):
        return False
    return True


def _paste_views(sheet: Image.Image, paths: list[Path], x: int, y: int) -> None:
    for i, path in enumerate(paths):
        with Image.open(path) as picture:
            view = picture.convert("RGB")
        view.thumbnail((CELL - 4, CELL - 4), Image.Resampling.LANCZOS)
        sheet.paste(view, (x + i * CELL + (CELL - view.width) // 2, y + (CELL - view.height) // 2))
