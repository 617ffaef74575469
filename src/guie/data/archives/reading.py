"""Zip and tar as one stream of members, each with a way to read it."""

from __future__ import annotations

import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from guie.base.errors import UserError
from guie.data.archives.inspection import Kind, Member

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
