"""Which files have been decoded whole before, so that the next run need not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import PIL

from guie.base.files import replacing

# Another Pillow may read less: then every file is decoded again. Raise the number with images.py.
VERSION = f"1, Pillow {PIL.__version__}"
TYPES = {"file": str, "decoder": str, "size_bytes": int, "mtime_ns": int, "version": str}
KEY = list(TYPES)


class Decoded:
    """`decoded.parquet` in a folder: good files by path, size, time of change and decoder.

    Only good files are remembered. A bad one is met again on every run, and forgotten when mended.
    """

    def __init__(self, folder: str | Path):
        self.path = Path(folder) / "decoded.parquet"
        self._known = self._read()

    def are_known(self, states: pd.DataFrame) -> pd.Series:
        """Boolean per row of `states`: this very file was decoded whole."""
        merged = states.merge(self._known, "left", on=KEY, indicator="found")
        known = (merged["found"] == "both") & (merged["size_bytes"] >= 0)
        return known.set_axis(states.index)

    def add(self, states: pd.DataFrame) -> None:
        """Remember good files, on disk too. Raises UserError where that cannot be written."""
        if states.empty:
            return
        merged = pd.concat([self._read(), states], ignore_index=True)
        self._known = merged.drop_duplicates(["file", "decoder"], keep="last")
        with replacing(self.path) as temporary:
            self._known.to_parquet(temporary, index=False)

    def _read(self) -> pd.DataFrame:
        try:
            known = pd.read_parquet(self.path, columns=KEY)
        except (OSError, ValueError):  # none yet, or not ours
            return pd.DataFrame(columns=KEY).astype(TYPES)
        return known[known["version"] == VERSION].astype(TYPES)


def decoded_folder(manifest: Path, fallback: str | Path) -> Path:
    """Where the good files of a manifest are remembered: beside it, for all that use it."""
    beside = manifest.parent
    return (beside if os.access(beside, os.W_OK) else Path(fallback)) / ".cache"


def absolute(root: str | Path, paths: Sequence[str]) -> list[str]:
    """The files of image paths, by the names that caches know them by."""
    inside = os.path.abspath(root)
    return [os.path.join(inside, path) for path in paths]


def file_states(files: Sequence[str], decoder: str) -> pd.DataFrame:
    """The KEY of each file as it is now; size and time are -1 where it cannot be read at all."""
    sizes_and_times = [_size_and_time(file) for file in files]
    states = pd.DataFrame(sizes_and_times, columns=["size_bytes", "mtime_ns"], dtype=int)
    return states.assign(file=list(files), decoder=decoder, version=VERSION)[KEY].astype(TYPES)


def _size_and_time(file: str) -> tuple[int, int]:
    try:
        state = os.stat(file)
        # A file that was good and may no longer be read has kept its size and its time.
        readable = os.access(file, os.R_OK)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return -1, -1
    return (state.st_size, state.st_mtime_ns) if readable else (-1, -1)
