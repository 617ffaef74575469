"""Names in a zip: decoded where their encoding is certain, else refused with the remedy."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.config import MixConfig, config_from
from guie.data.archives import unpacked

WINDOWS, UNIX = 0, 3


class Raw(zipfile.ZipInfo):
    """A member with the bytes of a name, and without the UTF-8 flag."""

    raw: bytes

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:
        return self.raw, self.flag_bits & ~0x800


def made(path: Path, *names: bytes, system: int = WINDOWS, extra: bytes = b"") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for number, raw in enumerate(names):
            info = Raw(f"{number}")
            info.raw, info.create_system, info.extra = raw, system, extra
            file.writestr(info, b"content")
    return path


def files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("茶杯/1.jpg", "gbk"),
        ("чай/1.jpg", "cp1251"),
        ("お茶/1.jpg", "shift_jis"),
        ("é/1.jpg", "cp437"),
    ],
)
def test_an_unknown_encoding_is_refused_and_a_given_one_obeyed(
    name: str, encoding: str, tmp_path: Path
) -> None:
    archive = made(tmp_path / "goods.zip", name.encode(encoding), b"plain/1.jpg")
    with pytest.raises(UserError, match="1 names are in an unknown encoding.*set encoding of the"):
        unpacked(archive)
    assert files(unpacked(archive, encoding)) == {name, "plain/1.jpg"}


def test_names_that_are_certain_need_no_encoding(tmp_path: Path) -> None:
    """UTF-8 without the flag, as ditto on macOS writes; a field of Info-ZIP; letters of three bytes."""
    assert files(unpacked(made(tmp_path / "a.zip", "é/1".encode(), system=UNIX))) == {"é/1"}
    assert files(unpacked(made(tmp_path / "b.zip", "茶/1".encode()))) == {"茶/1"}
    raw, name = "茶/1".encode("gbk"), "茶/1".encode()
    field = struct.pack("<HHBL", 0x7075, 5 + len(name), 1, zlib.crc32(raw)) + name
    assert files(unpacked(made(tmp_path / "c.zip", raw, extra=field))) == {"茶/1"}


def test_a_wrong_encoding_is_one_line(tmp_path: Path) -> None:
    archive = made(tmp_path / "a.zip", b"\x81\xff/1")
    with pytest.raises(UserError, match="1 names are not in gbk, such as"):
        unpacked(archive, "gbk")
    source = {"kind": "folder", "path": "a.zip", "domain": "d", "encoding": "gbq"}
    with pytest.raises(UserError, match="encoding: unknown to Python; gbk, shift_jis"):
        config_from({"name": "m", "out": "m.csv", "sources": [source]}, MixConfig)
