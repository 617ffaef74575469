"""A zip archive of uncompressed records that PyTorch 1.11 opens at every size.

Python's zipfile turns to zip64 at 2 GiB, the format only at 4 GiB, and 1.11's reader (miniz 2.0.8)
takes 0xFFFFFFFF, which says that zip64 has the offset, for the offset itself: where record and
offset then end behind the file, "invalid header or archive is corrupted". It leaves that check out
where zip64 has the record's size too. So offsets stay in 32 bits as far as they go, and beyond that
a record has everything in zip64, which the format allows.
"""

from __future__ import annotations

import struct
from typing import IO, BinaryIO

# What 32 bits cannot hold, and what stands there in place of it.
ZIP64 = 2**32 - 1
ZIP64_RECORDS = 2**16 - 1
# PyTorch's writer aligns every record, so that its reader may map a tensor into memory.
ALIGNMENT_BYTES = 64
CHUNK_BYTES = 2**20

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_ZIP64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_VERSION, _VERSION_ZIP64 = 20, 45
_MIDNIGHT, _FIRST_DAY = 0, 33  # of 1980: the same bytes whenever it is written


class StoredZip:
    """Records one after the other, then, by `close`, their directory. Nothing is read back.

    Args:
        file: written from where it stands; offsets count from its beginning.
    """

    def __init__(self, file: BinaryIO):
        self.file = file
        self.directory = b""
        self.records = 0

    def add(self, name: str, data: IO[bytes], size: int, crc: int) -> None:
        """Copy a record from a stream of so many bytes with this CRC-32."""
        encoded, offset = name.encode(), self.file.tell()
        large = _zip64(size, size) if size >= ZIP64 else b""
        extra = large + _padding(offset + _LOCAL.size + len(encoded) + len(large))
        self.file.write(
            _LOCAL.pack(b"PK\3\4", *_shared(large, size, crc), len(encoded), len(extra))
            + encoded
            + extra
        )
        while chunk := data.read(CHUNK_BYTES):
            self.file.write(chunk)
        large = _zip64(size, size, offset) if max(size, offset) >= ZIP64 else b""
        lengths = (len(encoded), len(large), 0, 0, 0)  # name, extra field, comment, disk, kind
        at = (0, ZIP64 if large else offset)  # permissions, offset
        self.directory += (
            _CENTRAL.pack(b"PK\1\2", _VERSION_ZIP64, *_shared(large, size, crc), *lengths, *at)
            + encoded
            + large
        )
        self.records += 1

    def close(self) -> None:
        """Write the directory. The file itself stays open."""
        start, size, records = self.file.tell(), len(self.directory), self.records
        end = b""
        if start >= ZIP64 or records >= ZIP64_RECORDS:
            versions = (44, _VERSION_ZIP64, _VERSION_ZIP64)  # 44: the bytes that follow
            end = _END_ZIP64.pack(b"PK\6\6", *versions, 0, 0, records, records, size, start)
            end += _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
        records = min(records, ZIP64_RECORDS)
        end += _END.pack(b"PK\5\6", 0, 0, records, records, size, min(start, ZIP64), 0)
        self.file.write(self.directory + end)


def _shared(large: bytes, size: int, crc: int) -> tuple[int, ...]:
    """What a record's two headers have in common: version, flags, method, time, day, CRC, sizes."""
    version, shown = (_VERSION_ZIP64, ZIP64) if large else (_VERSION, size)
    return version, 0, 0, _MIDNIGHT, _FIRST_DAY, crc, shown, shown


def _zip64(*values: int) -> bytes:
    """An extra field (id 1) with sizes, and perhaps the offset, of 64 bits."""
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


def _padding(start: int) -> bytes:
    """An extra field (id "FB", as PyTorch writes it) after which the data is aligned."""
    length = -(start + 4) % ALIGNMENT_BYTES
    return b"FB" + struct.pack("<H", length) + b"Z" * length
