"""Unpack data set archives safely: check every member before it is written, keep all of them or none."""

import fcntl
import json
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tqdm import tqdm

from guie.base.errors import DISK_FULL, UserError, why_unreadable
from guie.base.files import write_json
from guie.data.names import fault_of_name

MAX_MEMBER_BYTES = 16 * 2**30
# Unpacked bytes / archive bytes. Images hardly compress and annotations compress about 10 times, but a
# decompression bomb 1,000 times.
MAX_RATIO = 100.0
MAX_LINK_BYTES = 4096
BLOCK_BYTES = 4096  # even the smallest file takes one disk block
COPY_BYTES = DRAIN_BYTES = 2**20

SUFFIXES = tuple(".zip .tar .tar.gz .tgz .tar.bz2 .tbz2 .tar.xz .txz .tar.zst".split())
RECORD = ".unpacked.json"  # in the folder: identifies the archive that it was unpacked from
UTF8_FLAG, UNIX = 0x800, 3  # of a zip entry: its bit 11, and the system that wrote it
# By the file type in a zip entry; 0: no type is given.
TYPES = {
    0: tarfile.REGTYPE,
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
}
# Errors that the readers raise for truncated or damaged archives and unknown compression methods.
DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, NotImplementedError, RuntimeError, ValueError),
)


def fault_of_member(member: tarfile.TarInfo, max_bytes: int = MAX_MEMBER_BYTES) -> str | None:
    """Return why this member alone must not be unpacked, or None."""
    if fault := fault_of_name(member.name):
        return fault
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "a special file such as a device or a pipe"
    if member.size > max_bytes:
        return f"{member.size:,} bytes, more than {max_bytes:,}"
    return None if member.isdir() or PurePosixPath(member.name).parts else "no name"


def members_of(
    archive: Path, encoding: str | None = None
) -> Iterator[tuple[tarfile.TarInfo, Callable[[], IO[bytes] | None]]]:
    """Yield (member, function that opens it) in the archive's order; a tar is read as a stream."""
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as file:
            names = _names_of_zip(archive, file.infolist(), encoding)
            for info, name in zip(file.infolist(), names, strict=True):
                yield _of_zip(file, info, name), partial(file.open, info)
        return
    if archive.name.lower().endswith(".zst") and "zst" not in tarfile.TarFile.OPEN_METH:
        remedy = f"unpack it: tar --zstd -xf {archive}"
        raise UserError(f"{archive}: this Python reads no zstd (3.14 does); {remedy}")
    with tarfile.open(archive) as tar:
        for entry in tar:
            yield entry, partial(tar.extractfile, entry)
        refuse_cut_short(tar)
        # The checksum is only compared at the end of the stream
        while tar.fileobj.read(DRAIN_BYTES):
            pass


def refuse_cut_short(tar: tarfile.TarFile) -> None:
    """Raise ReadError unless a tar that was read to its last member ends there.

    tarfile mistakes a damaged header, or a cut between two members, for the end of the archive.
    """
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise tarfile.ReadError("cut short, or damaged in the middle")


@contextmanager
def damage_as_user_error(archive: Path) -> Iterator[None]:
    """Turn the readers' errors about a damaged archive into a UserError."""
    try:
        yield
    except (*DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk failed, not the gzip or bzip2 stream
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        fault = f"damaged or not an archive ({reason})"
        raise UserError(f"{archive}: {fault}; download it again") from error


def _names_of_zip(
    archive: Path, infos: Sequence[zipfile.ZipInfo], encoding: str | None
) -> list[str]:
    """Return the members' names, decoded. Raises UserError if their encoding is unknown.

    It is known for ASCII, with the UTF-8 flag, and with the field 0x7075 (Info-ZIP Unicode Path). Other names
    are read as UTF-8 if all are legal, and either a program for macOS or Linux wrote them or a letter has
    three bytes. Two bytes may be legal in GBK too.
    """
    # orig_filename, because zipfile cuts `filename` at a NUL; it decodes names without the flag by cp437
    names = [info.orig_filename for info in infos]
    unsure = {}
    for number, info in enumerate(infos):
        if not names[number].isascii() and not info.flag_bits & UTF8_FLAG:
            raw = names[number].encode("cp437")
            unicode_path = _unicode_path(info.extra, raw)
            if unicode_path is None:
                unsure[number] = raw
            else:
                names[number] = unicode_path
    found: dict[int, str] = {}
    with suppress(UnicodeDecodeError):
        found = {number: raw.decode(encoding or "utf-8") for number, raw in unsure.items()}
    is_unix = all(infos[number].create_system == UNIX for number in unsure)
    letters = "".join(found.values())
    if unsure and not (found and (encoding or is_unix or max(letters) > "\u07ff")):
        first = names[next(iter(unsure))]
        why = f"not in {encoding}" if encoding else "in an unknown encoding, not marked as UTF-8"
        raise UserError(
            f"{archive}: {len(unsure):,} names are {why}, such as {first!r}; set encoding of the source"
            f" (gbk, shift_jis, cp1251, cp866, cp437, ...), or unpack it by unzip -O gbk {archive.name}"
        )
    return [found.get(number, name) for number, name in enumerate(names)]


def _unicode_path(extra: bytes, raw: bytes) -> str | None:
    """Return the UTF-8 name in a zip entry's extra field 0x7075; None if there is none for this name."""
    while len(extra) >= 4:
        kind, size = struct.unpack("<HH", extra[:4])
        data, extra = extra[4 : 4 + size], extra[4 + size :]
        if kind == 0x7075 and data[:5] == struct.pack("<BL", 1, zlib.crc32(raw)):
            return data[5:].decode("utf-8")
    return None


def _of_zip(file: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> tarfile.TarInfo:
    """Return a zip's entry as a member of a tar. Raises UserError if it is encrypted."""
    if info.flag_bits & 1:
        raise UserError(f"{file.filename}: {name!r}: encrypted; unpack the archive by hand")
    member = tarfile.TarInfo(name)
    member.size = info.file_size
    kind = TYPES.get(stat.S_IFMT(info.external_attr >> 16), tarfile.FIFOTYPE)
    member.type = tarfile.DIRTYPE if info.is_dir() else kind
    if member.issym() and info.file_size <= MAX_LINK_BYTES:
        member.linkname = file.read(info).decode("utf-8", "surrogateescape")
    return member


def unpacked(path: str | Path, encoding: str | None = None) -> Path:
    """Return `path` if it is a folder; unpack an archive next to itself and return that folder.

    `input/products.tar.gz` -> `input/products`. Raises UserError like `unpack`.
    """
    path = Path(path)
    suffixes = [s for s in SUFFIXES if path.name.lower().endswith(s)]
    if not suffixes or path.is_dir():  # a folder may be named like an archive
        return path
    folder = path.with_name(path.name[: -len(max(suffixes, key=len))])
    return unpack(path, folder, encoding)


def unpack(archive: str | Path, folder: str | Path, encoding: str | None = None) -> Path:
    """Unpack a zip or tar into `folder` and return it; do nothing if that was done before.

    The folder is renamed into place only when complete, so an interrupted unpacking starts over.
    Owners, permissions and times in the archive are ignored.

    Raises UserError if the archive is missing or damaged, a member must not be unpacked, the disk is too
    small, or `folder` exists but does not come from this archive.
    """
    archive, folder = Path(archive), Path(folder)
    if folder.exists():
        _check_record(archive, folder, encoding)
        return folder
    if why := why_unreadable(archive, "archive"):
        raise UserError(f"{why}, and no folder {folder} unpacked from it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with archive.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a killed process frees it
        except BlockingIOError:
            raise UserError(f"{archive}: another process is unpacking it; wait for it") from None
        except OSError:
            pass  # this file system has no locks
        if not folder.exists():  # otherwise another process has unpacked it meanwhile
            _publish(archive, folder, encoding)
    return folder


def _publish(archive: Path, folder: Path, encoding: str | None) -> None:
    temporary = folder.with_name(f".{folder.name}.guie-unpacking")
    shutil.rmtree(temporary, ignore_errors=True)  # what a killed unpacking has left
    identity = _identity(archive, encoding)
    try:
        _fill(temporary, archive, encoding)
        write_json(temporary / RECORD, identity)
        os.sync()  # a power cut must not leave a whole folder of empty files
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise UserError(f"{archive}: {DISK_FULL[error.errno]}; nothing was unpacked") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fill(folder: Path, archive: Path, encoding: str | None) -> None:
    """Write the members into a new folder. Raises UserError at the first that must not be written."""
    folder.mkdir()
    folder = folder.resolve()
    archive_bytes, free_bytes = archive.stat().st_size, shutil.disk_usage(folder).free
    total_bytes = 0
    bar = tqdm(desc=f"unpack {archive.name}", unit="B", unit_scale=True, disable=None)
    with bar, damage_as_user_error(archive):
        for count, (member, read) in enumerate(members_of(archive, encoding), start=1):
            total_bytes += member.size
            if (needed := max(archive_bytes, total_bytes + count * BLOCK_BYTES)) > free_bytes:
                room = f"the disk of {folder.parent} has {free_bytes:,} free; free some space"
                raise UserError(f"{archive}: unpacking needs at least {needed:,} bytes, {room}")
            fault = fault_of_member(member)
            if total_bytes > MAX_RATIO * archive_bytes:
                fault = f"{archive_bytes:,} bytes unpack to {total_bytes:,}, a ratio above {MAX_RATIO:g}"
            if fault := fault or _write(member, read, folder):
                raise UserError(f"{archive}: not unpacked: {member.name!r}: {fault}")
            bar.update(member.size)


def _write(
    member: tarfile.TarInfo, read: Callable[[], IO[bytes] | None], folder: Path
) -> str | None:
    """Write a member below a folder, a real path, or return why it must not be written."""
    path = folder / member.name
    if path.parent.resolve() != path.parent:
        return "is inside a link"
    try:
        link = tarfile.data_filter(member, str(folder)).linkname
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.issym():
            path.symlink_to(link)
        elif member.islnk():
            file = folder / link
            if file.resolve() != file or not file.is_file():
                return f"a hard link to {link!r}, which is no earlier file"
            path.hardlink_to(file)
        elif source := read():
            with source, path.open("xb") as target:
                shutil.copyfileobj(source, target, COPY_BYTES)
    except (tarfile.FilterError, FileNotFoundError):  # the latter of an empty link
        return f"a link that leaves the folder, to {member.linkname!r}"
    except (FileExistsError, NotADirectoryError):
        return "occurs twice in the archive, or is inside a file"
    return None


def _identity(archive: Path, encoding: str | None) -> dict[str, Any]:
    """Return what identifies an archive without reading it."""
    state = archive.stat()
    known = {"archive": archive.name, "bytes": state.st_size, "modified_ns": state.st_mtime_ns}
    return known | ({"encoding": encoding} if encoding else {})


def _check_record(archive: Path, folder: Path, encoding: str | None) -> None:
    """Raise UserError unless the folder comes from this archive, or the archive no longer exists."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        fault = f"exists, but this program did not unpack it from {archive.name}"
        remedy = f"set path: {folder} to read it as it is, or move it away"
        raise UserError(f"{folder}: {fault}; {remedy}") from None
    if archive.is_file() and record != _identity(archive, encoding):
        fault = f"unpacked from another {archive.name} (size, time or encoding differ)"
        remedy = f"remove it to unpack again, or set path: {folder} to read it as it is"
        raise UserError(f"{folder}: {fault}; {remedy}")
