"""Data sets come as archives. Each is inspected member by member, then unpacked whole or not at all."""

from __future__ import annotations

import fcntl
import json
import lzma
import os
import shutil
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from tqdm import tqdm

from guie.base.errors import DISK_FULL, UserError
from guie.base.files import write_json

Kind = Literal["file", "folder", "symlink", "hardlink", "special"]


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of an archive, whatever the archive's format."""

    name: str
    kind: Kind
    size_bytes: int
    link: str = ""
    encrypted: bool = False

    @property
    def path(self) -> PurePosixPath:
        """The name without `./` and `//`."""
        return PurePosixPath(self.name)


@dataclass(frozen=True)
class Limits:
    """What an archive may hold at most.

    Public image datasets stay well below. Images hardly compress and annotations about tenfold;
    a bomb, a thousandfold.
    """

    members: int = 20_000_000
    member_bytes: int = 16 * 2**30
    total_bytes: int = 4 * 2**40
    ratio: float = 100.0  # unpacked bytes to the bytes of the archive


def fault_of_sizes(count: int, total_bytes: int, archive_bytes: int, limits: Limits) -> str | None:
    """Why so many members of this size are too much; None if they are not."""
    if count > limits.members:
        return f"more than {limits.members:,} members"
    if total_bytes > limits.total_bytes:
        return f"{total_bytes:,} bytes unpacked, more than {limits.total_bytes:,}"
    if total_bytes > limits.ratio * archive_bytes:
        return f"{archive_bytes:,} bytes unpack to {total_bytes:,}, a ratio above {limits.ratio:g}"
    return None


def fault_of_member(member: Member, limits: Limits) -> str | None:
    """Why a member must not be unpacked, whatever the others are; None if it may be."""
    fault = _fault_of_name(member.name)
    if fault:
        return fault
    if member.encrypted:
        return "encrypted; unpack the archive by hand"
    if member.kind == "special":
        return "a device, a pipe or the like"
    if member.size_bytes > limits.member_bytes:
        return f"{member.size_bytes:,} bytes, more than {limits.member_bytes:,}"
    if member.kind != "folder" and not member.path.parts:
        return "no name"
    return None


def fault_of_all(members: Sequence[Member]) -> str | None:
    """Why members, each harmless by itself, must not be unpacked together; None if they may be."""
    kinds: dict[PurePosixPath, str] = {}
    for member in members:
        known = kinds.get(member.path)
        if known and not known == member.kind == "folder":
            return f"{member.name!r}: stands twice in it"
        if member.kind == "hardlink" and kinds.get(PurePosixPath(member.link)) != "file":
            return f"{member.name!r}: a hard link to no file before it, {member.link!r}"
        kinds[member.path] = member.kind
    for member in members:
        for parent in member.path.parents:
            if kinds.get(parent, "folder") != "folder":
                return f"{member.name!r}: lies below {str(parent)!r}, which is no folder"
        if member.kind == "symlink" and _leaves(member, kinds):
            return f"{member.name!r}: a link that leaves the folder, to {member.link!r}"
    return None


def alike_but_for_case(members: Sequence[Member]) -> list[str]:
    """Names that are one file on a disk that ignores case (macOS, Windows)."""
    paths = {str(member.path) for member in members}
    counts = Counter(path.casefold() for path in paths)
    return sorted(path for path in paths if counts[path.casefold()] > 1)


def _fault_of_name(name: str) -> str | None:
    if "\\" in name or "\0" in name:
        return "a name with a backslash or a NUL"
    if _absolute(name):
        return "an absolute path"
    return "leaves the folder" if ".." in name.split("/") else None


def _absolute(name: str) -> bool:
    return name.startswith("/") or (name[:1].isalpha() and name[1:2] == ":")


def _leaves(symlink: Member, kinds: dict[PurePosixPath, str]) -> bool:
    """Would the link lead out of the folder, or through another link?

    What lies behind a link is not where its path says: there, `..` may lead anywhere.
    """
    if not symlink.link or _absolute(symlink.link) or "\\" in symlink.link:
        return True
    here = symlink.path.parent
    for part in symlink.link.split("/"):
        if kinds.get(here, "folder") != "folder":
            return True
        if part == ".." and not here.parts:
            return True
        here = here.parent if part == ".." else here / part
    return False


MAX_LINK_BYTES = 4096
# By the file type that a zip states; 0: it states none.
KINDS: dict[int, Kind] = {
    0: "file",
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "symlink",
}
DRAIN_BYTES = 2**20
# What the readers raise for an archive that is cut short, damaged or of an unknown compression.
DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, NotImplementedError, RuntimeError, ValueError),
)


def members_of(archive: Path) -> Iterator[tuple[Member, Callable[[], IO[bytes]]]]:
    """(member, how to open it) in the archive's order; a tar is read on as they are taken."""
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                yield _of_zip(file, info), partial(file.open, info)
        return
    if archive.name.lower().endswith(".zst") and "zst" not in tarfile.TarFile.OPEN_METH:
        raise UserError(
            f"{archive}: this Python reads no zstd (3.14 does); unpack it: tar --zstd -xf {archive}"
        )
    with tarfile.open(archive) as tar:
        for entry in tar:
            yield _of_tar(entry), partial(_content, tar, entry)
        # tarfile takes a damaged header, and a file cut between members, for the end
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
            raise tarfile.ReadError("cut short, or damaged in the middle")
        while tar.fileobj.read(DRAIN_BYTES):  # a checksum is only compared at a stream's end
            pass


@contextmanager
def damage_as_user_error(archive: Path) -> Iterator[None]:
    """Turn what the readers raise for a damaged archive into a UserError."""
    try:
        yield
    except (*DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a fault of the disk, not of gzip's or bzip2's stream
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{archive}: damaged or no archive ({reason}); get it again") from error


def _of_zip(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    kind = KINDS.get(stat.S_IFMT(info.external_attr >> 16), "special")
    encrypted = bool(info.flag_bits & 1)
    if info.is_dir():
        kind = "folder"
    link = ""
    if kind == "symlink" and not encrypted and info.file_size <= MAX_LINK_BYTES:
        link = file.read(info).decode("utf-8", "surrogateescape")
    # the original: zipfile cuts a name at a NUL
    return Member(info.orig_filename, kind, info.file_size, link, encrypted)


def _of_tar(info: tarfile.TarInfo) -> Member:
    if info.issym():
        return Member(info.name, "symlink", 0, info.linkname)
    if info.islnk():
        return Member(info.name, "hardlink", 0, info.linkname)
    kind: Kind = "file" if info.isreg() else "folder" if info.isdir() else "special"
    return Member(info.name, kind, info.size)


def _content(file: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    content = file.extractfile(info)
    assert content is not None  # it is for folders and the like, which nobody reads
    return content


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
