"""Open images in shards by their addresses, and tell their state without reading them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from guie.base.errors import UserError
from guie.data.shards.address import may_be_index, shown, split_address, url_of
from guie.data.shards.index import Places, open_places
from guie.data.shards.storage import fetch_ahead, read_range

State = tuple[int, int]  # size in bytes, and what changes with the content
GONE = (-1, -1)  # as of a file that cannot be read


def open_in_shard(path: str) -> io.BytesIO | None:
    """Return the bytes of an image in a shard; None if the path is that of a file.

    Raises UserError: no such image in the index, or as `read_range`.
    """
    address = split_address(path)
    if address is None:
        if url := url_of(path):
            raise UserError(
                f"{url}: images in object storage must be in shards; write them by curate.py --shards,"
                " and name their index.parquet as the manifest"
            )
        return None
    index, image_path = address
    found = open_places(index).range_of(image_path)
    if found is None:
        raise UserError(f"{shown(index)}: has no image {image_path!r}")
    return io.BytesIO(read_range(*found))


def fetch_images(paths: Sequence[str]) -> None:
    """Fetch the images in object storage, all at the same time, so that `open_in_shard` need not wait.

    Other paths are ignored. Raises UserError if an index cannot be read.
    """
    remote = [address for path in paths if url_of(path) and (address := split_address(path))]
    found = [open_places(index).range_of(image_path) for index, image_path in remote]
    fetch_ahead([one for one in found if one is not None])


def states_in_shards(paths: Sequence[str]) -> dict[int, State]:
    """Return size and content of those of the paths that are in shards, by position; `GONE` if absent.

    Raises UserError if a shard is missing or has another size than indexed.
    """
    states: dict[int, State] = {}
    for places, numbers, row_N in _located(paths):
        places.check_shards()
        content_N = (places.content_N[row_N] >> np.uint64(1)).astype(np.int64)
        found = zip(
            numbers, row_N.tolist(), places.size_N[row_N].tolist(), content_N.tolist(), strict=True
        )
        for number, row, size, content in found:
            states[number] = GONE if row < 0 else (size, content)
    return states


def decoded_in_shards(paths: Sequence[str], version: str) -> np.ndarray:
    """Return a boolean per path: its index says that decoders of this version read the image."""
    decoded_N = np.zeros(len(paths), bool)
    for places, numbers, row_N in _located(paths):
        code = places.versions.index(version) if version in places.versions else -1
        decoded_N[numbers] = (row_N >= 0) & (places.version_N[row_N] == code)
    return decoded_N


def _located(paths: Sequence[str]) -> Iterator[tuple[Places, list[int], np.ndarray]]:
    """Yield, for each index: its places, the positions of its images in `paths`, and their rows."""
    members: dict[str, tuple[list[int], list[str]]] = {}
    asked_once = cache(may_be_index)  # a million images of one index ask the disk a single time
    for number, path in enumerate(paths):
        if address := split_address(path, asked_once):
            numbers, names = members.setdefault(address[0], ([], []))
            numbers.append(number)
            names.append(address[1])
    for index, (numbers, names) in members.items():
        places = open_places(index)
        yield places, numbers, places.rows_of(names)
