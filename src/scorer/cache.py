"""A cache of embeddings next to the score file, from which an interrupted scoring resumes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scorer.contract import MAX_DIMENSION
from scorer.errors import UserError

_MAGIC = b"scorer 1"
_RECORD = np.dtype(
    [
        ("image", "V32"),
        ("decode_seconds", "<f8"),
        ("model_seconds", "<f8"),
        ("rotated", "u1"),
        ("count", "u1"),
        ("numbers", "<f4", (MAX_DIMENSION,)),
        ("crc", "<u4"),
    ]
)


class Kept(NamedTuple):
    """The embedding of one image, and its time."""

    emb_D: np.ndarray
    decode_seconds: float
    model_seconds: float
    rotated: bool


def image_key(root: Path, image_path: str) -> bytes:
    """Return 32 bytes that depend on an image's name, size and modification time."""
    known = os.stat(root / image_path)
    words = f"{image_path}\0{known.st_size}\0{known.st_mtime_ns}"
    return hashlib.sha256(words.encode()).digest()


class EmbeddingCache:
    """A file of records of fixed length, each with a CRC; reading stops at an incomplete one.

    Args:
        key: all else that embeddings depend on: submission, version of torch, device. A file with
            another key is overwritten.

    Raises:
        UserError: another scoring writes to the file, or the file is not such a cache.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, head = path, _MAGIC + hashlib.sha256(key.encode()).digest()
        self.file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise UserError(f"{path}: another scoring writes to it; give another --out") from None
        self.file.seek(0)
        content = self.file.read()
        if content and not content.startswith(_MAGIC):
            self.file.close()
            raise UserError(f"{path}: not written by score.py; move it, or give another --out")
        if content[: len(head)] != head:
            self.file.truncate(0)
            self.file.write(head)
        self.records: dict[bytes, Kept] = {}
        whole = self._read(content[len(head) :]) if content[: len(head)] == head else 0
        self.file.truncate(len(head) + whole * _RECORD.itemsize)

    def _read(self, content: bytes) -> int:
        """Read the records before the first damaged one; return their number."""
        count = len(content) // _RECORD.itemsize
        for row, record in enumerate(np.frombuffer(content, _RECORD, count)):
            crc = zlib.crc32(record.tobytes()[:-4])
            if crc != record["crc"] or not 1 <= record["count"] <= MAX_DIMENSION:
                return row
            self.records[record["image"].tobytes()] = Kept(
                record["numbers"][: record["count"]].copy(),
                float(record["decode_seconds"]),
                float(record["model_seconds"]),
                bool(record["rotated"]),
            )
        return count

    def add(self, image: bytes, kept: Kept) -> None:
        """Append the record of one image."""
        record = np.zeros((), _RECORD)
        record["image"] = np.void(image)
        record["decode_seconds"], record["model_seconds"] = kept.decode_seconds, kept.model_seconds
        record["rotated"], record["count"] = kept.rotated, len(kept.emb_D)
        record["numbers"][: len(kept.emb_D)] = kept.emb_D
        record["crc"] = zlib.crc32(record.tobytes()[:-4])
        self.file.write(record.tobytes())
        self.records[image] = kept

    def close(self, remove: bool) -> None:
        """Close the file; remove it, or keep it for the next scoring."""
        if remove:
            self.path.unlink(missing_ok=True)
        self.file.close()
