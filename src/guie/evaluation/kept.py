"""Blocks of a long computation, kept in a folder: a start after a kill goes on, processes share."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from guie.base.files import replacing, write_text

KEY = "key.txt"


@dataclass(frozen=True)
class KeptBlocks:
    """A folder of blocks that were computed, each by one of several processes.

    Args:
        folder: of this computation alone, as `open` leaves it.
        process: number of this process; `processes`: how many share the work.
    """

    folder: Path
    process: int = 0
    processes: int = 1
    prefix: str = ""

    @staticmethod
    def open(folder: Path, key: str) -> None:
        """Make the folder ready, by one process: what another key left there goes."""
        file = folder / KEY
        if not file.is_file() or file.read_text(encoding="utf-8") != key:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_text(file, key)

    def within(self, prefix: str) -> KeptBlocks:
        """The same, for searches of that prefix."""
        return replace(self, prefix=f"{self.prefix}{prefix}/")

    def is_mine(self, number: int) -> bool:
        """Does this process compute that block?"""
        return number % self.processes == self.process

    def get(self, name: str, number: int) -> pd.DataFrame | None:
        """A block that was kept; None where there is none yet."""
        file = self._file(name, number)
        return pd.read_parquet(file) if file.is_file() else None

    def add(self, name: str, number: int, values: pd.DataFrame) -> None:
        """Keep a block; a kill leaves all of it or nothing."""
        with replacing(self._file(name, number)) as temporary:
            values.to_parquet(temporary, index=False)

    def remove(self) -> None:
        """All of it, once the result is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, name: str, number: int) -> Path:
        search = hashlib.sha256(f"{self.prefix}{name}".encode()).hexdigest()[:12]
        return self.folder / f"{search}_{number:06d}.parquet"
