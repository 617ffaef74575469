"""The submission file: a zip with one TorchScript file."""

import shutil
import zipfile
import zlib
from pathlib import Path

from scorer.errors import Violation, one_line

MODEL_NAME = "saved_model.pt"
# PyTorch 1.11 refuses any newer archive (its kMaxSupportedFileFormatVersion).
MAX_FORMAT_VERSION = 9
# Raised by zipfile for a damaged or encrypted file, or an unknown compression.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


def unpack_model(path: Path, unpacked: Path) -> None:
    """Extract `saved_model.pt`, the only allowed member of a submission.

    Raises Violation for another layout and for a damaged or encrypted zip; OSError if the disk is full.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if names != [MODEL_NAME]:
                shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
                raise Violation(f"{len(names)} members: {shown or 'none'}")
            with archive.open(MODEL_NAME) as member, unpacked.open("wb") as file:
                shutil.copyfileobj(member, file, 2**20)
    except ZIP_ERRORS as error:
        raise Violation(f"not a readable zip archive ({one_line(error)})") from error


def format_version(path: Path) -> int:
    """Return the format version of a TorchScript archive. Raises Violation if it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = {name.partition("/")[2]: name for name in archive.namelist()}
            # PyTorch prefers the hidden record if both exist.
            record = records.get(".data/version") or records.get("version")
            if record is None:
                raise ValueError("it has no version record")
            return int(archive.read(record))
    except ZIP_ERRORS as error:
        message = f"{MODEL_NAME} is no TorchScript archive ({one_line(error)})"
        raise Violation(message, "no_torchscript") from error
