"""Archives: what is harmless is unpacked whole, what is not is refused before a byte is written."""

from __future__ import annotations

import fcntl
import io
import os
import random
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.data.archives import Limits, unpack, unpacked

FILES = {"cat/1.jpg": b"one" * 50, "cat/2.jpg": os.urandom(3000), "dog/deep/3.jpg": b""}
FORMATS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def make_zip(path: Path, *members: tuple) -> Path:
    """Members as (name or ZipInfo, content)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def make_tar(path: Path, *members: tuple) -> Path:
    """Members as (name, content) or (name, content, attributes of the TarInfo)."""
    with tarfile.open(path, "w:" + path.suffix.lstrip(".").replace("tar", "")) as file:
        for name, content, *more in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in more[0].items() if more else ():
                setattr(info, key, value)
            file.addfile(info, io.BytesIO(content))
    return path


def zipped(name: str, mode: int = 0, **attributes) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("placeholder" if "\0" in name else name)
    info.filename = name
    info.external_attr = mode << 16
    for key, value in attributes.items():
        setattr(info, key, value)
    return info


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> dict:
    return {"type": kind, "linkname": target}


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files if p.name[0] != "."}


def refusal(archive: Path, limits: Limits | None = None) -> str:
    """What `unpack` says; it must leave nothing."""
    before = sorted(archive.parent.iterdir())
    with pytest.raises(UserError) as caught:
        unpack(archive, archive.parent / "out", limits)
    assert sorted(archive.parent.iterdir()) == before
    said = str(caught.value)
    assert said.startswith(f"{archive}: ") and "\n" not in said
    return said


@pytest.mark.parametrize("suffix", FORMATS)
def test_unpacked_beside_and_only_once(suffix: str, tmp_path: Path) -> None:
    make = make_zip if suffix == ".zip" else make_tar
    path = tmp_path / f"products{'.tar' + suffix[4:] if suffix.startswith('.tar.') else suffix}"
    if suffix == ".tgz":
        make_tar(tmp_path / "products.tar.gz", *FILES.items()).rename(path)
    else:
        make(path, *FILES.items())
    folder = unpacked(path)
    assert folder == tmp_path / "products" and contents(folder) == FILES
    inode = (folder / "cat/1.jpg").stat().st_ino
    assert unpacked(path) == folder
    assert (folder / "cat/1.jpg").stat().st_ino == inode, "unpacked again"
    path.unlink()  # to save the space
    assert unpacked(path) == folder


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert unpacked(tmp_path) == tmp_path
    (tmp_path / "odd.zip").mkdir()
    assert unpacked(tmp_path / "odd.zip") == tmp_path / "odd.zip"
    with pytest.raises(UserError, match="absent.zip: no such archive"):
        unpacked(tmp_path / "absent.zip")


def test_names_of_the_archiver_are_made_plain(tmp_path: Path) -> None:
    members = [("./", b"", {"type": tarfile.DIRTYPE}), ("./cat", b"", {"type": tarfile.DIRTYPE})]
    path = make_tar(tmp_path / "a.tar", *members, ("./cat/1.jpg", b"1"), ("cat//2.jpg", b"2"))
    assert contents(unpacked(path)) == {"cat/1.jpg": b"1", "cat/2.jpg": b"2"}


def test_no_permission_is_taken_over(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "a.tar", ("cat/1.sh", b"1", {"mode": 0o6777, "uid": 12345}))
    known = (unpacked(path) / "cat/1.sh").stat()
    assert not known.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR)
    assert known.st_uid == os.getuid()


def test_links_that_stay_are_unpacked(tmp_path: Path) -> None:
    path = make_tar(
        tmp_path / "a.tar",
        ("all/1.jpg", b"1"),
        ("cat/hard.jpg", b"", link("all/1.jpg", tarfile.LNKTYPE)),
        ("cat/soft.jpg", b"", link("../all/1.jpg")),
        ("cat/chain.jpg", b"", link("./soft.jpg")),
    )
    names = ("all/1.jpg", "cat/hard.jpg", "cat/soft.jpg", "cat/chain.jpg")
    assert contents(unpacked(path)) == dict.fromkeys(names, b"1")
    soft = zipped("cat/soft.jpg", stat.S_IFLNK | 0o777)
    path = make_zip(tmp_path / "b.zip", ("all/1.jpg", b"1"), (soft, "../all/1.jpg"))
    assert (unpacked(path) / "cat/soft.jpg").is_symlink()
    assert contents(tmp_path / "b")["cat/soft.jpg"] == b"1"


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
    assert "a hard link to no file" in refusal(make_tar(tmp_path / "a.tar", *members))


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    members = [("d/f", b"1"), ("l", b"", link("d")), ("l/x", b"2")]
    assert "lies below 'l'" in refusal(make_tar(tmp_path / "a.tar", *members))
    # the member stands before its link
    members = [("l/x", b"2"), ("d/f", b"1"), ("l", b"", link("d"))]
    assert "lies below 'l'" in refusal(make_tar(tmp_path / "b.tar", *members))


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_devices_and_pipes_are_refused(kind: bytes, tmp_path: Path) -> None:
    path = make_tar(tmp_path / "a.tar", ("cat/1.jpg", b"1"), ("cat/2.jpg", b"", {"type": kind}))
    assert "'cat/2.jpg': a device" in refusal(path)
    path = make_zip(tmp_path / "a.zip", (zipped("cat/2.jpg", stat.S_IFIFO | 0o644), b""))
    assert "'cat/2.jpg': a device" in refusal(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["cat/1.jpg", "./cat/1.jpg", "cat", "cat/1.jpg/x"])
def test_a_name_that_stands_twice_is_refused(second: str, tmp_path: Path) -> None:
    members = (("cat/1.jpg", b"1"), (second, b"2"))
    said = {refusal(make_zip(tmp_path / "a.zip", *members)).partition(": ")[2]}
    said.add(refusal(make_tar(tmp_path / "a.tar", *members)).partition(": ")[2])
    assert len(said) == 1 and ("stands twice" in said.pop()) == second.endswith("cat/1.jpg")


def test_names_alike_but_for_case_are_told(tmp_path: Path, capsys) -> None:
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg", b"1"), ("Cat/1.JPG", b"2"), ("x", b""))
    unpacked(path)
    assert "2 names differ by case only, such as 'Cat/1.JPG' and 'cat/1.jpg'" in (
        capsys.readouterr().err
    )


def test_encrypted_members_are_refused(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg", b"1"))
    raw = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + flags] |= 1
    path.write_bytes(raw)
    assert "'cat/1.jpg': encrypted" in refusal(path)


def test_limits(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", *((f"c/{n}", os.urandom(1000)) for n in range(5)))
    assert "more than 4 members" in refusal(path, Limits(members=4))
    assert "'c/0': 1,000 bytes, more than 999" in refusal(path, Limits(member_bytes=999))
    assert "5,000 bytes unpacked, more than 4,999" in refusal(path, Limits(total_bytes=4999)), (
        "the total counts, not the largest"
    )
    unpack(path, tmp_path / "fits", Limits(members=5, member_bytes=1000, total_bytes=5000))


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tar.bz2", ".tar.xz"])
def test_a_bomb_is_refused(suffix: str, tmp_path: Path) -> None:
    make = make_zip if suffix == ".zip" else make_tar
    path = make(tmp_path / f"a{suffix}", ("cat/1.jpg", bytes(5_000_000)))
    assert f"{path.stat().st_size:,} bytes unpack to 5,000,000, a ratio above 100" in refusal(path)


def test_a_declared_size_that_is_too_small_gains_nothing(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg", bytes(5_000_000)))
    size = (5_000_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, (10).to_bytes(4, "little")))
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("seed", range(12))  # where damage falls decides what could tell
@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz"])
def test_damaged_archives_are_refused(suffix: str, seed: int, tmp_path: Path) -> None:
    make = make_zip if suffix == ".zip" else make_tar
    draw = random.Random(seed)
    path = make(tmp_path / f"a{suffix}", *((f"c/{n}", draw.randbytes(3000)) for n in range(4)))
    whole = path.read_bytes()
    cuts = [0, 1, 100, len(whole) // 2, len(whole) - len(whole) // 3]
    boundary = 2 * (512 + 3072)  # in the tar: right between two members
    for cut in [*cuts, boundary]:
        path.write_bytes(whole[:cut])
        assert "damaged" in refusal(path), cut
    path.write_bytes(whole[:boundary] + b"junk" * 200 + whole[boundary + 800 :])
    assert "damaged" in refusal(path)
    path.write_bytes(b"no archive at all" * 99)
    assert "damaged" in refusal(path)


def test_zstd_is_read_or_a_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(99))
    said = refusal(tmp_path / "a.tar.zst")
    assert "damaged" in said if "zst" in tarfile.TarFile.OPEN_METH else "tar --zstd -xf" in said


def test_too_little_space_is_told_before(tmp_path: Path, monkeypatch) -> None:
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg", os.urandom(9000)))
    free = type("Usage", (), {"free": 9000 + 4095})
    monkeypatch.setattr("guie.data.archives.unpacking.shutil.disk_usage", lambda folder: free)
    assert "unpacking needs 13,096 bytes" in refusal(path)


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", *FILES.items())
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="in the way of a.zip.*write path: .*/a to read it"):
        unpacked(path)
    (tmp_path / "a").rmdir()
    unpacked(path)
    make_zip(path, ("cat/new.jpg", b"new"))
    with pytest.raises(UserError, match="unpacked from another a.zip.*remove it to unpack anew"):
        unpacked(path)
    assert contents(tmp_path / "a") == FILES


def test_a_killed_unpacking_is_done_again(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", *((f"c/{n}", os.urandom(20)) for n in range(8_000)))
    command = [
        sys.executable,
        "-c",
        f"from guie.data.archives import unpacked; unpacked({str(path)!r})",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    half = tmp_path / ".a.unpacking"
    while not (half / "c/20").exists():
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert half.exists() and not (tmp_path / "a").exists()
    (half / "c/stray").write_text("of the killed one")
    assert len(contents(unpacked(path))) == 8_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "a.zip"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", *FILES.items())
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process is unpacking it" in refusal(path)
    unpacked(path)
