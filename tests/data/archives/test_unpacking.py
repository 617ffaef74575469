"""Archives that are harmless are unpacked whole, once, by one process."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from archive_files import FILES, contents, link, make_tar, make_zip, refusal, zipped

from guie.base.errors import UserError
from guie.data.archives import unpacked

FORMATS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


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


def test_too_little_space_is_told_before(tmp_path: Path, monkeypatch) -> None:
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg", os.urandom(9000)))
    free = type("Usage", (), {"free": 9000 + 4095})
    monkeypatch.setattr("guie.data.archives.shutil.disk_usage", lambda folder: free)
    assert "unpacking needs at least 13,096 bytes" in refusal(path)


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", *FILES.items())
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="did not unpack it from a.zip.*set path: .*/a to read it"):
        unpacked(path)
    (tmp_path / "a").rmdir()
    unpacked(path)
    make_zip(path, ("cat/new.jpg", b"new"))
    with pytest.raises(UserError, match="unpacked from another a.zip.*remove it to unpack again"):
        unpacked(path)
    assert contents(tmp_path / "a") == FILES


@pytest.mark.slow
def test_a_killed_unpacking_is_done_again(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", *((f"c/{n}", os.urandom(20)) for n in range(3_000)))
    # It stops by itself: a busy machine may unpack all before the test sees the first file
    program = f"""
import time
from guie.data import archives
write, done = archives._write, []

def some(*given):
    done.append(write(*given))
    if len(done) > 30:
        time.sleep(600)

archives._write = some
archives.unpacked({str(path)!r})
"""
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    half = tmp_path / ".a.unpacking/content"
    while not (half / "c/20").exists():
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert half.exists() and not (tmp_path / "a").exists()
    (half / "c/stray").write_text("of the killed one")
    assert len(contents(unpacked(path))) == 3_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "a.zip"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", *FILES.items())
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process is unpacking it" in refusal(path)
    unpacked(path)


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


def test_a_scratch_folder_that_is_not_ours_is_kept(tmp_path: Path) -> None:
    path, theirs = make_zip(tmp_path / "a.zip", *FILES.items()), tmp_path / ".a.unpacking"
    theirs.mkdir()
    (theirs / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="this program did not make it"):
        unpacked(path)
    assert (theirs / "notes.txt").read_text() == "mine" and not (tmp_path / "a").exists()
