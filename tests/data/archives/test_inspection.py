"""Archives that are not harmless are refused, and nothing of them stays."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pytest
from archive_files import link, make_tar, make_zip, refusal, zipped

from guie.data import archives
from guie.data.archives import unpack, unpacked

NAMES = {
    "/etc/passwd": "an absolute path",
    "C:/Windows/x": "an absolute path",
    "../x": "leaves the folder",
    "a/../../x": "leaves the folder",
    "a/..": "leaves the folder",
    "..\\x": "a backslash",
    "a\\b.jpg": "a backslash",
}


@pytest.mark.parametrize(("name", "said"), NAMES.items())
def test_names_that_leave_are_refused(name: str, said: str, tmp_path: Path) -> None:
    good = ("cat/1.jpg", b"1")
    assert said in refusal(make_zip(tmp_path / "a.zip", good, (zipped(name), b"x")))
    assert said in refusal(make_tar(tmp_path / "a.tar", good, (name, b"x")))


def test_a_name_with_a_nul_is_refused(tmp_path: Path) -> None:
    """zipfile would cut it: `1.jpg\\0.exe` becomes `1.jpg`."""
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg_.exe", b"x"))
    path.write_bytes(path.read_bytes().replace(b"1.jpg_", b"1.jpg\0"))
    assert "a NUL" in refusal(path)


@pytest.mark.parametrize(
    "members",
    [
        [("a", b"", link("/etc/passwd"))],
        [("a", b"", link("../x"))],
        [("a", b"", link(""))],
        [("d/a", b"", link("../../x"))],
        # a link into the folder above the link's own target: `..` of a link leads elsewhere
        [("deep/down/f", b"1"), ("l", b"", link("deep/down")), ("m", b"", link("l/../../../x"))],
        [("d/e/up", b"", link("../..")), ("n", b"", link("d/e/up/../x"))],
    ],
)
def test_symbolic_links_that_leave_are_refused(members: list, tmp_path: Path) -> None:
    assert "a link that leaves the folder" in refusal(make_tar(tmp_path / "a.tar", *members))
    of_zip = [
        (zipped(name, stat.S_IFLNK | 0o777), more[0]["linkname"]) if more else (name, content)
        for name, content, *more in members
    ]
    assert "a link that leaves the folder" in refusal(make_zip(tmp_path / "a.zip", *of_zip))


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "absent", "soft"])
def test_hard_links_to_anything_but_a_file_before_are_refused(target: str, tmp_path: Path) -> None:
    soft = ("soft", b"", link("f"))
    members = [("f", b"1"), soft, ("a", b"", link(target, tarfile.LNKTYPE))]
    said = refusal(make_tar(tmp_path / "a.tar", *members))
    assert "which is no earlier file" in said or "a link that leaves the folder" in said


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    members = [("d/f", b"1"), ("l", b"", link("d")), ("l/x", b"2")]
    assert "'l/x': is inside a link" in refusal(make_tar(tmp_path / "a.tar", *members))
    # the member stands before its link
    members = [("l/x", b"2"), ("d/f", b"1"), ("l", b"", link("d"))]
    assert "'l': occurs twice" in refusal(make_tar(tmp_path / "b.tar", *members))
    # a hard link to a link, from where the link leads outside
    members = [("d/l", b"", link("../f")), ("a", b"", link("d/l", tarfile.LNKTYPE))]
    assert "which is no earlier file" in refusal(make_tar(tmp_path / "c.tar", *members))
    through = ("a", b"", link("m/f", tarfile.LNKTYPE))
    members = [("d/f", b"1"), ("m", b"", link("d")), through]
    assert "which is no earlier file" in refusal(make_tar(tmp_path / "d.tar", *members))


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_devices_and_pipes_are_refused(kind: bytes, tmp_path: Path) -> None:
    path = make_tar(tmp_path / "a.tar", ("cat/1.jpg", b"1"), ("cat/2.jpg", b"", {"type": kind}))
    assert "'cat/2.jpg': a special file" in refusal(path)
    path = make_zip(tmp_path / "a.zip", (zipped("cat/2.jpg", stat.S_IFIFO | 0o644), b""))
    assert "'cat/2.jpg': a special file" in refusal(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["cat/1.jpg", "./cat/1.jpg", "cat", "cat/1.jpg/x"])
def test_a_name_that_stands_twice_is_refused(second: str, tmp_path: Path) -> None:
    members = (("cat/1.jpg", b"1"), (second, b"2"))
    said = {refusal(make_zip(tmp_path / "a.zip", *members)).partition(": ")[2]}
    said.add(refusal(make_tar(tmp_path / "a.tar", *members)).partition(": ")[2])
    assert len(said) == 1 and "occurs twice in the archive, or is inside a file" in said.pop()


def test_names_alike_but_for_case_are_told(tmp_path: Path, capsys) -> None:
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg", b"1"), ("Cat/1.JPG", b"2"), ("x", b""))
    unpacked(path)
    assert (
        "1 names differ from another only in case, space or Unicode form, such as 'Cat/1.JPG' and"
        in (capsys.readouterr().err)
    )


def test_encrypted_members_are_refused(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg", b"1"))
    raw = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + flags] |= 1
    path.write_bytes(raw)
    assert "'cat/1.jpg': encrypted" in refusal(path)


@pytest.mark.parametrize(
    ("limit", "fits", "said"),
    [
        ("MAX_MEMBERS", 5, "more than 4 members"),
        ("MAX_MEMBER_BYTES", 1000, "'c/0': 1,000 bytes, more than 999"),
        ("MAX_TOTAL_BYTES", 5000, "5,000 bytes unpacked, more than 4,999"),  # not the largest
    ],
)
def test_limits(limit: str, fits: int, said: str, tmp_path: Path, monkeypatch) -> None:
    path = make_zip(tmp_path / "a.zip", *((f"c/{n}", os.urandom(1000)) for n in range(5)))
    monkeypatch.setattr(archives, limit, fits - 1)
    assert said in refusal(path)
    monkeypatch.setattr(archives, limit, fits)
    unpack(path, tmp_path / "fits")


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tar.bz2", ".tar.xz"])
def test_a_bomb_is_refused(suffix: str, tmp_path: Path) -> None:
    make = make_zip if suffix == ".zip" else make_tar
    path = make(tmp_path / f"a{suffix}", ("cat/1.jpg", bytes(5_000_000)))
    assert f"{path.stat().st_size:,} bytes unpack to 5,000,000, a ratio above 100" in refusal(path)
