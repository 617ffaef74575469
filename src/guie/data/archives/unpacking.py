"""Unpack a dataset's archive: inspected first, whole or not at all, once."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from guie.base.errors import DISK_FULL, UserError
from guie.base.files import write_json
from guie.data.archives.inspection import (
    Limits,
    Member,
    alike_but_for_case,
    fault_of_all,
    fault_of_member,
    fault_of_sizes,
)
from guie.data.archives.reading import damage_as_user_error, members_of

SUFFIXES = (
    *(".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2"),
    *(".tar.xz", ".txz", ".tar.zst"),
)
RECORD = ".unpacked.json"  # in the folder: which archive it is of
COPY_BYTES = 2**20
BLOCK_BYTES = 4096  # the smallest file takes a block of the disk


def unpacked(path: str | Path) -> Path:
    """The folder `path` itself or, of an archive, the folder beside it that it is unpacked into.

    `input/products.tar.gz` -> `input/products`. Raises UserError like `unpack`.
    """
    path = Path(path)
    suffixes = [s for s in SUFFIXES if path.name.lower().endswith(s)]
    if not suffixes or path.is_dir():  # a folder may be called anything
        return path
    return unpack(path, path.with_name(path.name[: -len(max(suffixes, key=len))]))


def unpack(archive: str | Path, folder: str | Path, limits: Limits | None = None) -> Path:
    """Unpack a zip or tar into `folder`; do nothing if it was unpacked there before.

    The folder gets its name when it is whole, so that a killed unpacking is done again. No owner,
    permission or time of the archive is taken over.

    Raises:
        UserError: no such archive, or a damaged one; a member that must not be unpacked; too
            little disk space; a folder in the way that is not of this archive.
    """
    archive, folder = Path(archive), Path(folder)
    if folder.exists():
        _check_record(archive, folder)
        return folder
    if not archive.is_file():
        raise UserError(f"{archive}: no such archive, and no {folder} that was unpacked from it")
    members = _inspected(archive, limits or Limits())
    _check_space(archive, folder, members)
    with _alone(archive):
        if not folder.exists():  # else another process was faster
            _publish(archive, folder, members)
    return folder


def _inspected(archive: Path, limits: Limits) -> list[Member]:
    """Every member, found harmless. A bomb is refused before it is read through."""
    archive_bytes, total_bytes = archive.stat().st_size, 0
    members: list[Member] = []
    with damage_as_user_error(archive):
        for member, _ in tqdm(members_of(archive), f"inspect {archive.name}", disable=None):
            members.append(member)
            total_bytes += member.size_bytes
            fault = fault_of_member(member, limits)
            if fault:
                raise UserError(f"{archive}: not unpacked: {member.name!r}: {fault}")
            fault = fault_of_sizes(len(members), total_bytes, archive_bytes, limits)
            if fault:
                raise UserError(f"{archive}: not unpacked: {fault}")
    fault = fault_of_all(members)
    if fault:
        raise UserError(f"{archive}: not unpacked: {fault}")
    alike = alike_but_for_case(members)
    if alike:
        print(
            f"{archive}: {len(alike)} names differ by case only, such as {alike[0]!r} and"
            f" {alike[1]!r}: one file on a disk that ignores case",
            file=sys.stderr,
        )
    return members


def _check_space(archive: Path, folder: Path, members: list[Member]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    needed = sum(member.size_bytes + BLOCK_BYTES for member in members)
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise UserError(
            f"{archive}: unpacking needs {needed:,} bytes, the disk of {folder.parent} has"
            f" {free:,} free; free some space"
        )


def _publish(archive: Path, folder: Path, members: list[Member]) -> None:
    temporary = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(temporary, ignore_errors=True)  # what a killed unpacking has left
    try:
        _fill(temporary, archive, members)
        write_json(temporary / RECORD, _identity(archive))
        os.sync()  # a power cut must not leave a whole folder of empty files
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise UserError(f"{archive}: {DISK_FULL[error.errno]}; nothing was unpacked") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _alone(archive: Path) -> Iterator[None]:
    """One process at a time; a kill frees the lock. Raises UserError if another one has it."""
    with archive.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{archive}: another process is unpacking it; wait for it") from None
        except OSError:
            pass  # a file system without locks
        yield


def _fill(folder: Path, archive: Path, members: list[Member]) -> None:
    """Write the members into a new folder. Raises UserError if the archive changes meanwhile."""
    folder.mkdir()
    total_bytes = sum(member.size_bytes for member in members)
    title = f"unpack {archive.name}"
    bar = tqdm(desc=title, total=total_bytes, unit="B", unit_scale=True, disable=None)
    with bar, damage_as_user_error(archive):
        for expected, (member, read) in zip(members, members_of(archive), strict=True):
            if member != expected:
                raise UserError(f"{archive}: was changed while it was unpacked; try again")
            _write(member, read, folder)
            bar.update(member.size_bytes)


def _write(member: Member, read: Callable[[], IO[bytes]], folder: Path) -> None:
    path = folder / member.path
    if member.kind == "folder":
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.kind == "symlink":
        path.symlink_to(member.link)
    elif member.kind == "hardlink":
        path.hardlink_to(folder / member.link)
    else:
        with read() as source, path.open("xb") as target:
            shutil.copyfileobj(source, target, COPY_BYTES)


def _identity(archive: Path) -> dict[str, Any]:
    """What tells an archive from another one of its name, without reading it through."""
    known = archive.stat()
    return {"archive": archive.name, "bytes": known.st_size, "modified_ns": known.st_mtime_ns}


def _check_record(archive: Path, folder: Path) -> None:
    """Refuse a folder that is not of this archive; one whose archive is gone is taken as it is."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(
            f"{folder}: in the way of {archive.name}, and not unpacked from it by this program;"
            f" write path: {folder} to read it as it is, or move it away"
        ) from None
    if archive.is_file() and record != _identity(archive):
        raise UserError(
            f"{folder}: unpacked from another {archive.name} (size or time differ); remove it to"
            f" unpack anew, or write path: {folder} to read it as it is"
        )
