"""Name what is in shards: the address of an image, and objects in object storage as paths.

An image's address is its index, a slash, and its image_path: `shards/index.parquet/a/b.jpg`. So the index
takes the place of a manifest's root folder, and `root / image_path` names a file or an image in a shard.

`s3://bucket/x` is written `/s3:/bucket/x` inside the program. `Path` would cut one of the two slashes, and
`os.path.abspath` would put the working folder before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

SCHEMES = ("s3", "gs", "az")
URL = re.compile(rf"/?({'|'.join(SCHEMES)}):/+(.*)")  # also where a Path has cut a slash
SUFFIX = ".parquet"


def as_path(name: str | Path) -> Path:
    """Return a path for a file name or a URL: `s3://bucket/x` -> `/s3:/bucket/x`."""
    found = URL.fullmatch(str(name))
    return Path(f"/{found[1]}:/{found[2]}") if found else Path(name)


def url_of(path: str | Path) -> str | None:
    """Return the URL of an object, `/s3:/bucket/x` -> `s3://bucket/x`; None for a local path."""
    found = URL.fullmatch(str(path)) if str(path).startswith("/") else None
    return f"{found[1]}://{found[2]}" if found else None


def shown(path: str | Path) -> str:
    """Return a path as the user writes it."""
    return url_of(path) or str(path)


def may_be_index(path: str) -> bool:
    """Return whether a path is a file or names an object: a folder may be called `x.parquet` too."""
    return bool(url_of(path)) or os.path.isfile(path)


def split_address(
    path: str, may_be_index: Callable[[str], bool] = may_be_index
) -> tuple[str, str] | None:
    """Return the index and the image_path of an address; None for the path of a file."""
    end = path.find(f"{SUFFIX}/")
    while end >= 0:
        index = path[: end + len(SUFFIX)]
        if may_be_index(index):
            return index, path[end + len(SUFFIX) + 1 :]
        end = path.find(f"{SUFFIX}/", end + 1)
    return None
