"""Images in shards: byte ranges of tars that an index names, as `curate.py --shards` writes them.

An index, `index.parquet` in the folder of its tars, takes the place of the folder of the images: the file
of an image is then `index.parquet/<image_path>`. On disk, or in object storage where fsspec is installed.
"""

from __future__ import annotations

import io
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from scorer.errors import UserError

PLACE = ["shard", "offset", "size", "content"]
URL = re.compile(r"^(s3|gs|az):/+")  # a Path has cut one of the slashes


class Range(NamedTuple):
    """Where an image is: bytes of a shard, by path or URL; `content` changes with them."""

    shard: str
    offset: int
    size: int
    content: int

    def read(self) -> io.BytesIO:
        """Return the image's bytes. Raises OSError if the shard is missing or too short."""
        if URL.match(self.shard):
            import fsspec

            system, path = fsspec.url_to_fs(self.shard)
            data = system.cat_file(path, start=self.offset, end=self.offset + self.size)
        else:
            with open(self.shard, "rb") as file:
                file.seek(self.offset)
                data = file.read(self.size)
        if len(data) < self.size:
            raise OSError(f"{self.shard} is cut short; copy it again")
        return io.BytesIO(data)


def with_slashes(path: Path) -> str:
    """Return a path, or a URL as it was before it became a Path."""
    return URL.sub(r"\1://", str(path), count=1)


def range_of(path: Path) -> Range | None:
    """Return where an image in a shard is; None if the path does not lead through an index.

    Raises UserError if the index has no such image, or cannot be read.
    """
    before, found, image_path = with_slashes(path).partition(".parquet/")
    index = f"{before}.parquet"
    if not found or not (URL.match(before) or os.path.isfile(index)):
        return None
    ranges = _ranges(index)
    if image_path not in ranges:
        raise UserError(f"{index}: has no image {image_path!r}")
    return ranges[image_path]


@lru_cache
def _ranges(index: str) -> dict[str, Range]:
    try:
        table = pd.read_parquet(index, columns=["image_path", *PLACE])
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{index}: cannot be read as an index of shards ({reason})") from error
    folder, slash, _ = index.rpartition("/")
    ranges = {}
    for image_path, shard, *place in table.itertuples(index=False):
        if "/" in shard:
            raise UserError(f"{index}: shard {shard!r} is not beside the index")
        ranges[image_path] = Range(folder + slash + shard, *map(int, place))
    return ranges
