"""Identify rows by keys of 16 bytes: of a file, its name and what changes with its content."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path

import numpy as np
import xxhash

from guie.base.errors import UserError, why_unreadable
from guie.base.processes import CHECK_CONTENT
from guie.data.shards.opening import states_in_shards
from guie.data.shards.storage import content_hash, shown, url_of

STAT_THREADS, STAT_FILES = 32, 500  # threads that ask for states, and files that one takes at once
KEY = np.dtype("V16")


@dataclass(frozen=True)
class States:
    """What identifies each of N rows.

    Attributes:
        names: of files below their root, so that moved files keep their rows.
        size_N: bytes, int64; -1 for a file that cannot be read.
        time_N: of the last change in nanoseconds, or a hash of the bytes, int64.
        variant: what is computed of the same file, such as a decoder, a box or a view: one for all, or each.
    """

    names: Sequence[str]
    size_N: np.ndarray
    time_N: np.ndarray
    variant: str | Sequence[str] = ""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def key_N(self) -> np.ndarray:
        variants = repeat(self.variant) if isinstance(self.variant, str) else self.variant
        rows = zip(self.names, self.size_N.tolist(), self.time_N.tolist(), variants, strict=False)
        texts = (f"{name}\0{size}\0{time}\0{variant}" for name, size, time, variant in rows)
        digests = (xxhash.xxh3_128_digest(t.encode(errors="surrogateescape")) for t in texts)
        return np.frombuffer(b"".join(digests), KEY)  # (N,)

    @property
    def readable_N(self) -> np.ndarray:
        return self.size_N >= 0

    def take(self, rows: Sequence[int] | np.ndarray) -> States:
        """Return the states at these positions, or where a boolean array is true."""
        rows = np.arange(len(self))[np.asarray(rows)]
        names, variant = [self.names[row] for row in rows], self.variant
        variant = variant if isinstance(variant, str) else [variant[row] for row in rows]
        return States(names, self.size_N[rows], self.time_N[rows], variant)

    def of(self, variant: str | Sequence[str]) -> States:
        """Return the states of another variant of the same files."""
        return replace(self, variant=variant)


def keys(names: Sequence[str]) -> States:
    """Return states without files, such as those of pairs of digests."""
    zeros = np.zeros(len(names), np.int64)
    return States(names, zeros, zeros)


def absolute(root: str | Path, names: Iterable[str]) -> list[str]:
    """Return the path of each file below a root."""
    inside = os.path.join(os.path.abspath(root), "")
    names = np.asarray(names, object).tolist()  # a column of Arrow strings is slow to iterate over
    return [name if name.startswith(os.sep) else inside + name for name in names]


def states(
    root: str | Path,
    names: Sequence[str],
    variant: str | Sequence[str] = "",
    by_content: bool | None = None,
) -> States:
    """Return the current states of files below a root.

    An image in a shard has a number in place of the time that changes with its bytes, and so has any file
    with `by_content`, by default with `--check-content`.
    """
    by_content = bool(os.environ.get(CHECK_CONTENT)) if by_content is None else by_content
    names = np.asarray(names, object).tolist()
    files = absolute(root, names)
    in_shard_N, size_N, time_N = states_in_shards(files)
    loose = np.flatnonzero(~in_shard_N)
    batches = np.split(loose, range(STAT_FILES, len(loose), STAT_FILES))
    # A network disk takes milliseconds for each file
    with ThreadPoolExecutor(STAT_THREADS) as pool:
        asked = pool.map(lambda own: [_size_and_time(files[n], by_content) for n in own], batches)
        for own, found in zip(batches, asked, strict=True):
            size_N[own], time_N[own] = np.reshape(found, (-1, 2)).T
    return States(names, size_N, time_N, variant)


def readable_states(
    root: str | Path,
    names: Sequence[str],
    variant: str | Sequence[str] = "",
    without: Sequence[int] | np.ndarray = (),
) -> States:
    """Return `states`. Raises UserError if a file cannot be read, but for those at some positions."""
    found = states(root, names, variant)
    bad = np.setdiff1d(np.flatnonzero(~found.readable_N), without)
    if len(bad):
        (first,) = absolute(root, [found.names[bad[0]]])
        why = None if url_of(first) else why_unreadable(first, "image")
        why = why or f"{shown(first)}: cannot be read"
        wanted = "the root must be the folder that image_path is relative to"
        raise UserError(f"{why} ({len(bad):,} of {len(found):,} images); {wanted}")
    return found


def _size_and_time(file: str, by_content: bool) -> tuple[int, int]:
    try:
        state = os.stat(file)
        if by_content and stat.S_ISREG(state.st_mode):
            data = Path(file).read_bytes()
            return len(data), content_hash(data) >> 1  # as an int64
        # A good file that has become unreadable keeps its size and time, so read access is tested.
        readable = os.access(file, os.R_OK)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return -1, -1
    return (state.st_size, state.st_mtime_ns) if readable else (-1, -1)
