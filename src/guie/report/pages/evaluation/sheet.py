"""Many small pictures as one: a JPEG a picture would weigh twice as much."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps
from tqdm import tqdm

from guie.base.errors import UserError
from guie.data.images import open_as_seen

TILE_PX = 64
COLUMNS = 32
QUALITY = 70
NOTHING = (128, 128, 128)


class Sheet(NamedTuple):
    """The central squares of pictures, row by row.

    `faults`: by place, why there is no picture; its tile is grey.
    """

    uri: str
    faults: dict[int, str]
    columns: int = COLUMNS
    tile_px: int = TILE_PX


def picture_sheet(paths: Sequence[str], root: Path, bar: tqdm) -> Sheet:
    """Decode every picture once, counted on `bar`, however often it stands there."""
    rows = max(1, math.ceil(len(paths) / COLUMNS))
    sheet = Image.new("RGB", (COLUMNS * TILE_PX, rows * TILE_PX), NOTHING)
    tiles: dict[str, Image.Image | str] = {}
    faults = {}
    for place, path in enumerate(paths):
        if path not in tiles:
            tiles[path] = _tile(root / path)
            bar.update()
        tile = tiles[path]
        if isinstance(tile, str):
            faults[place] = tile.replace(f"{root / path}: ", "", 1)
        else:
            sheet.paste(tile, (place % COLUMNS * TILE_PX, place // COLUMNS * TILE_PX))
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return Sheet(f"data:image/jpeg;base64,{encoded}", faults)


def _tile(path: Path) -> Image.Image | str:
    try:
        image = open_as_seen(path)
    except (UserError, ValueError) as error:  # ValueError: a NUL in the path
        return str(error)
    return ImageOps.fit(image, (TILE_PX, TILE_PX), Image.Resampling.BICUBIC)
