"""Keep rows on disk that several jobs may add to at the same time."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pandas as pd

from guie.base.files import cache_folder, replacing

T = TypeVar("T")
SAVE_EVERY_S = 60.0


class StoredTable:
    """Rows in a folder; jobs may add to them at the same time.

    Each `add` writes a Parquet file of its own, named by the hash of its rows.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def read(self, columns: list[str], files: list[str] | None = None) -> Iterator[pd.DataFrame]:
        """Yield columns of each Parquet file; `files` limits the rows to these values of `file`."""
        filters = None if files is None else [("file", "in", files)]
        # Not the temporary files, whose names begin with a dot.
        for path in sorted(self.folder.glob("[!.]*.parquet")):
            with suppress(OSError, ValueError):  # deleted meanwhile, damaged, or not ours
                yield pd.read_parquet(path, columns=columns, filters=filters)

    def add(self, rows: pd.DataFrame) -> None:
        """Write some rows. Raises UserError if they cannot be written."""
        if rows.empty:
            return
        name = hashlib.sha256(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes())
        with replacing(self.folder / f"{name.hexdigest()}.parquet") as temporary:
            rows.to_parquet(temporary, index=False)


def stored_folder(kind: str, of: str | Path) -> Path:
    """Return the folder in `GUIE_CACHE` for rows of this kind about the files in a folder."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(of))).hexdigest()[:16]
    return cache_folder() / kind / name


def save_in_pieces(rows: Iterable[T], save: Callable[[list[T]], None]) -> None:
    """Pass the rows to `save`, those of a minute at a time; also after Ctrl-C, so that nothing is lost."""
    piece: list[T] = []
    began = time.monotonic()
    try:
        for row in rows:
            piece.append(row)
            if time.monotonic() - began > SAVE_EVERY_S:
                done, piece, began = piece, [], time.monotonic()
                save(done)
    finally:
        save(piece)
