"""Open images in shards by their addresses, and tell their state without reading them.

An image's address is its index, a slash, and its image_path: `shards/index.parquet/a/b.jpg`. So the index
takes the place of a manifest's root folder, and `root / image_path` names a file or an image in a shard.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from guie.base.errors import UserError
from guie.data.shards.index import Places, open_places
from guie.data.shards.storage import (
    fetch_ahead,
    objects_below,
    read_object,
    read_range,
    shown,
    url_of,
)

SUFFIX = ".parquet"


def _may_be_index(path: str) -> bool:
    """Return whether a path is a file or names an object: a folder may be called `x.parquet` too."""
    return bool(url_of(path)) or os.path.isfile(path)


def _split(
    path: str, may_be_index: Callable[[str], bool] = _may_be_index
) -> tuple[str, str] | None:
    """Return the index and the image_path of an address; None for the path of a file."""
    end = path.find(f"{SUFFIX}/")
    while end >= 0:
        index = path[: end + len(SUFFIX)]
        if may_be_index(index):
            return index, path[end + len(SUFFIX) + 1 :]
        end = path.find(f"{SUFFIX}/", end + 1)
    return None


def open_in_shard(path: str) -> io.BytesIO | None:
    """Return the bytes of an image in a shard, or of an object; None if the path is that of a file.

    Raises UserError: no such image in the index, no such object, or as `read_range`.
    """
    address = _split(path)
    if address is None:
        url = url_of(path)
        return io.BytesIO(read_object(url)) if url else None
    index, image_path = address
    found = open_places(index).range_of(image_path)
    if found is None:
        raise UserError(f"{shown(index)}: has no image {image_path!r}")
    return io.BytesIO(read_range(found))


def fetch_images(paths: Sequence[str]) -> None:
    """Fetch the images in object storage, all at the same time, so that `open_in_shard` need not wait.

    Other paths are ignored. Raises UserError if an index cannot be read.
    """
    found, objects = [], []
    for path in paths:
        if url := url_of(path):
            if address := _split(path):
                found.append(open_places(address[0]).range_of(address[1]))
            else:
                objects.append(url)
    fetch_ahead([one for one in found if one is not None], objects)


def states_in_shards(paths: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the state of each image that is in a shard, or in object storage, which is listed.

    Returns: of N paths, whether it is one of these (bool), the size in bytes, and a number that changes with
        the content (int64). The latter are -1 for a file, and if there is no such image.

    Raises UserError if a shard is missing or has another size than indexed, or objects cannot be listed.
    """
    in_shard_N = np.zeros(len(paths), bool)
    size_N, content_N = np.full((2, len(paths)), -1)
    for places, numbers, row_N in _located(paths):
        places.check_shards()
        in_shard_N[numbers] = True
        found = row_N >= 0
        numbers, row_N = numbers[found], row_N[found]
        size_N[numbers] = places.size_N[row_N]
        content_N[numbers] = places.content_N[row_N] >> np.uint64(1)
    objects = {
        n: url for n, path in enumerate(paths) if not in_shard_N[n] and (url := url_of(path))
    }
    if objects:
        folder = url_of(os.path.commonpath([os.path.dirname(paths[n]) for n in objects]))
        known = objects_below(str(folder))
        for number, url in objects.items():
            in_shard_N[number] = True
            size_N[number], content_N[number] = known.get(url, (-1, -1))
    return in_shard_N, size_N, content_N


def decoded_in_shards(paths: Sequence[str], version: str) -> np.ndarray:
    """Return a boolean per path: its index says that decoders of this version read the image."""
    decoded_N = np.zeros(len(paths), bool)
    for places, numbers, row_N in _located(paths):
        code = places.versions.index(version) if version in places.versions else -1
        decoded_N[numbers] = (row_N >= 0) & (places.version_N[row_N] == code)
    return decoded_N


def _located(paths: Sequence[str]) -> Iterator[tuple[Places, np.ndarray, np.ndarray]]:
    """Yield, for each index: its places, the positions of its images in `paths`, and their rows."""
    members: dict[str, tuple[list[int], list[str]]] = {}
    checked_once = cache(_may_be_index)  # a million images of one index ask the disk a single time
    prefix = "\0"
    numbers, names = list[int](), list[str]()
    for number, path in enumerate(paths):
        if not path.startswith(prefix):  # the index of the image before, and a slash
            address = _split(path, checked_once)
            if address is None:
                continue
            prefix = f"{address[0]}/"
            numbers, names = members.setdefault(address[0], ([], []))
        numbers.append(number)
        names.append(path[len(prefix) :])
    for index, (found, image_paths) in members.items():
        places = open_places(index)
        yield places, np.array(found), places.rows_of(image_paths)
