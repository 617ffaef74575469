"""The submission file: a zip with one TorchScript file, inspected before it is read."""

from __future__ import annotations

import io
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from scorer.errors import Violation, one_line

MODEL_NAME = "saved_model.pt"
# PyTorch 1.11 refuses any newer archive (its kMaxSupportedFileFormatVersion).
MAX_FORMAT_VERSION = 9
# A larger file does not fit into the challenge's 16 GB GPU.
MAX_BYTES = 16 * 2**30
# Weights hardly compress, code about tenfold, a zip bomb a thousandfold.
MAX_RATIO = 100
# zipfile holds the whole list of members in memory; this allows some 40,000 members.
MAX_LIST_BYTES = 2**22
CHUNK_BYTES = 2**20
# Raised by zipfile for a damaged or encrypted file, or an unknown compression.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


def unpack_model(path: Path, folder: Path) -> Path:
    """Extract `saved_model.pt`, the only allowed member of a submission, into a folder.

    The archive is inspected before the member is read. It becomes a file, because PyTorch copies a
    model in memory twice.

    Raises:
        Violation: not a zip; another layout; a link; an encrypted, damaged or oversized member.
    """
    unpacked = folder / MODEL_NAME
    with unpacked.open("wb") as file:
        for chunk in _chunks(path):
            file.write(chunk)
    return unpacked


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with _Listed(path) as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if names != [MODEL_NAME]:
                shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
                raise Violation(f"{len(names)} members: {shown or 'none'}")
            if stat.S_ISLNK(archive.infolist()[0].external_attr >> 16):
                raise Violation(f"{MODEL_NAME} is a link")
            _refuse_bomb(archive)
            with archive.open(MODEL_NAME) as member:
                while chunk := member.read(CHUNK_BYTES):
                    yield chunk
    except ZIP_ERRORS as error:
        raise Violation(f"not a readable zip archive ({one_line(error)})") from error


class _Listed(io.FileIO):
    """A zip file with a size limit on its list of members, which zipfile reads at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_LIST_BYTES:
            raise ValueError(f"a list of members of {size:,} bytes, more than {MAX_LIST_BYTES:,}")
        return super().read(size) or b""


def _refuse_bomb(archive: zipfile.ZipFile) -> None:
    # zipfile never yields more than the declared size, so false sizes are harmless.
    unpacked = sum(member.file_size for member in archive.infolist())
    packed = sum(member.compress_size for member in archive.infolist())
    if unpacked > MAX_BYTES:
        raise Violation(f"{unpacked:,} bytes unpacked, more than {MAX_BYTES:,}")
    if unpacked > MAX_RATIO * packed:
        raise Violation(f"{packed:,} bytes unpack to {unpacked:,}, a ratio above {MAX_RATIO}")


def inspect_archive(path: Path) -> int:
    """Inspect a TorchScript archive and return its format version.

    Raises:
        Violation: not a TorchScript archive, or too large when unpacked.
    """
    try:
        with _Listed(path) as file, zipfile.ZipFile(file) as archive:
            _refuse_bomb(archive)
            names = archive.namelist()
            root = names[0].split("/")[0] if names else ""
            # PyTorch prefers the hidden record if both exist.
            for record in (f"{root}/.data/version", f"{root}/version"):
                if record in names:
                    with archive.open(record) as version:
                        return int(version.read(32))
            raise ValueError("it has no version record")
    except ZIP_ERRORS as error:
        message = f"{MODEL_NAME} is no TorchScript archive ({one_line(error)})"
        raise Violation(message, "no_torchscript") from error
