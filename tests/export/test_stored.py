"""A zip whose records begin above 2 and 4 GiB, in sparse files: as zipfile and PyTorch 1.11 read it.

tests/torch111/test_sizes.py opens such files in PyTorch 1.11 itself.
"""

import io
import zipfile
import zlib
from pathlib import Path

import pytest

from guie.export.torchscript import ALIGNMENT_BYTES, ZIP64, StoredZip

GIB = 2**30
STARTS = [0, 2 * GIB - 40, 3 * GIB, 4 * GIB - 100, 4 * GIB - 1, 5 * GIB]
RECORDS = {"m/data.pkl": b"code" * 5, "m/data/0": bytes(range(256)) * 40, "m/version": b"9\n"}
ZEROS = bytes(2**20)


class Sparse(io.FileIO):
    """A file that leaves holes for blocks of zeros."""

    def write(self, data: bytes) -> int:
        return self.seek(len(data), io.SEEK_CUR) if data is ZEROS else super().write(data)


class Zeros(io.RawIOBase):
    """A stream of so many MiB of zeros."""

    def __init__(self, count: int) -> None:
        self.left = count

    def read(self, size: int = -1) -> bytes:
        self.left -= 1
        return ZEROS if self.left >= 0 else b""


def add(archive: StoredZip, name: str, data: bytes) -> None:
    archive.add(name, io.BytesIO(data), len(data), zlib.crc32(data))


def refused_by_1_11(path: Path) -> list[str]:
    """The records that miniz 2.0.8 takes for corrupt, by its check of each entry of the directory."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        file.seek(archive.start_dir)
        directory, refused = file.read(), []
        for entry in directory.split(b"PK\1\2")[1:]:
            size, offset = (int.from_bytes(entry[at : at + 4], "little") for at in (16, 38))
            if size != ZIP64 and offset + 30 + size > path.stat().st_size:
                refused.append(entry[42 : 42 + entry[24]].decode())
    return refused


@pytest.mark.parametrize("start", STARTS)
def test_every_reader_finds_the_records_wherever_they_begin(start: int, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with path.open("wb") as file:
        file.seek(start)
        archive = StoredZip(file)
        for name, data in RECORDS.items():
            add(archive, name, data)
        archive.close()
    assert refused_by_1_11(path) == []
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        assert {name: archive.read(name) for name in archive.namelist()} == RECORDS
        for record in archive.infolist():
            assert record.header_offset >= start
            file.seek(record.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
            assert (record.header_offset + 30 + name + extra) % ALIGNMENT_BYTES == 0


def test_a_record_larger_than_4_gib_has_its_size_in_zip64(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with Sparse(path, "w") as file:
        archive = StoredZip(file)
        archive.add("m/data/0", Zeros(5 * 1024), 5 * GIB, crc=1)
        add(archive, "m/version", b"9\n")
        archive.close()
    with zipfile.ZipFile(path) as archive:
        assert [record.file_size for record in archive.infolist()] == [5 * GIB, 2]
        assert archive.read("m/version") == b"9\n"
        with archive.open("m/data/0") as record:
            assert not any(record.read(1000))
    assert refused_by_1_11(path) == []
