"""Thumbnails that stand in the page itself."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from tqdm import tqdm

from guie.base.errors import UserError
from guie.data.images import open_as_seen
from guie.data.looks.alignment import working
from guie.data.looks.difference import difference_picture

SIDE_PX = 128  # the longer side at the most
QUALITY = 75


class Picture(NamedTuple):
    """A thumbnail as a data URI, or why there is none."""

    uri: str
    width: int
    height: int
    fault: str


class Pictures:
    """Thumbnails by image_path, each decoded once, counted on `bar`."""

    def __init__(self, root: Path, bar: tqdm):
        self.root, self.bar = root, bar
        self.known: dict[str, Picture] = {}

    def __call__(self, image_path: str) -> Picture:
        if image_path not in self.known:
            self.known[image_path] = self._thumbnail(image_path)
            self.bar.update()
        return self.known[image_path]

    def difference(self, image_path: str, other_path: str, mirrored: bool) -> Picture:
        """What is left of one image where the other is taken from it, as cleaning compares them."""
        try:
            one, other = (
                working(open_as_seen(self.root / path)) for path in (image_path, other_path)
            )
        except (UserError, ValueError) as error:
            return Picture("", 0, 0, str(error))
        rest_HWC = difference_picture(one, other, mirrored)
        if rest_HWC is None:
            return Picture("", 0, 0, "they do not lie on each other")
        return _embedded(Image.fromarray(rest_HWC))

    def _thumbnail(self, image_path: str) -> Picture:
        path = self.root / image_path
        try:
            image = open_as_seen(path)
        except (UserError, ValueError) as error:  # ValueError: a NUL in the path
            return Picture("", 0, 0, str(error).replace(f"{path}: ", "", 1))
        image.thumbnail((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC, reducing_gap=2.0)
        return _embedded(image)


def _embedded(image: Image.Image) -> Picture:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, optimize=True, comment=b"")  # else the source's
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return Picture(f"data:image/jpeg;base64,{encoded}", *image.size, "")
