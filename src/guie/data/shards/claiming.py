"""Claim a folder while its index is written: one process at a time, with its own files for a resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guie.base.errors import UserError
from guie.base.files import held, remove_own

PARTS, LOCK = ".guie-parts", "lock"
OWN = ("*.tar*.parquet", "plan.json", ".*.tmp.*", LOCK)


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Lock a folder, and yield its subfolder for what is known so far, which is deleted at the end.

    It stays after a failure, so that the same command resumes. A user's files in it always stay.
    Raises UserError if another process writes to the folder, or somebody else made the subfolder.
    """
    parts = folder / PARTS
    made = parts.is_dir() and any(parts.iterdir())
    if parts.is_symlink() or (made and not (parts / LOCK).is_file()):
        raise UserError(f"{parts}: not made by curate.py, which needs this name; rename it")
    with held(parts / LOCK, f"{folder}: another process writes its index", "wait for it"):
        yield parts
        remove_own(parts, OWN)
