"""A write that the system refuses gives one clear line; the old file stays, and no other is left."""

import errno
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from guie.base import files
from guie.base.errors import UserError
from guie.base.files import (
    append_text,
    held,
    quoted,
    read_json,
    refuse_replacing,
    refuse_special,
    replacing,
    write_text,
)

# Writes by each library, below each limit on the size of files; prints what came of it.
WRITER = """
import io, resource, signal, sys, tarfile
from pathlib import Path
import numpy as np, pandas as pd, pyarrow as pa, torch
from matplotlib.figure import Figure
from safetensors.torch import save_file
from guie.base.errors import UserError
from guie.base.files import replacing, save_arrays

folder, limits = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
pixels = np.random.default_rng(0).integers(0, 256, (300, 300), dtype=np.uint8)
table, tensors = pd.DataFrame(pixels).rename(columns=str), {"a": torch.from_numpy(pixels)}

def figure(path):
    chart = Figure()
    chart.add_subplot().imshow(pixels)
    chart.savefig(path)

def columns(path):
    rows = pa.Table.from_pandas(table)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)

def members(path):
    with tarfile.open(path, "w") as tar:
        for number in range(20):
            header = tarfile.TarInfo(str(number))
            header.size = 4000
            tar.addfile(header, io.BytesIO(pixels.tobytes()[:4000]))

WRITERS = {
    "torch.pt": lambda path: torch.save(tensors, path),
    "weights.safetensors": lambda path: save_file(tensors, path),
    "arrays.npz": lambda path: save_arrays(path, a=pixels, b=pixels),
    "table.csv": table.to_csv,
    "table.parquet": table.to_parquet,
    "chart.png": figure,
    "text.txt": lambda path: path.write_text("x" * 100_000),
    "columns.arrow": columns,
    "members.tar": members,
}
if limits:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # without the signal, write() says EFBIG
for limit in limits or [None]:
    for name, write in WRITERS.items():
        path = folder / name
        path.write_text("old")
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            with replacing(path) as temporary:
                write(temporary)
            line = "written"
        except UserError as error:
            line = str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(name, path.stat().st_size == 3, line, sep="\\t")
"""
# Each library's first byte, its first block, its header and its data.
LIMITS_BYTES = (0, 1, 600, 5_000, 12_000)
WRITERS = re.findall(r'^    "(.*?)":', WRITER, flags=re.MULTILINE)


def lines_of_writers(folder: Path, *limits: int) -> list[list[str]]:
    command = [sys.executable, "-c", WRITER, str(folder), *map(str, limits)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"no right to mount a small disk: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, leave_bytes: int) -> None:
    """Take the space of a disk but for so many bytes."""
    free = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - leave_bytes))


@pytest.mark.slow
def test_every_writer_at_every_point_ends_in_one_line(tmp_path: Path) -> None:
    rows = lines_of_writers(tmp_path, *LIMITS_BYTES)
    why = "larger than the file system or `ulimit -f` allows; raise it or write elsewhere, and run again"
    assert rows == [
        [name, "True", f"{tmp_path / name}: {why}; the old file is intact"] for name in WRITERS
    ] * len(LIMITS_BYTES)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(WRITERS)


@pytest.mark.parametrize("leave_bytes", [0, 8192])
def test_a_full_disk_is_named(leave_bytes: int, mounted: Path) -> None:
    (mounted / "a.txt").write_text("old")
    fill(mounted, leave_bytes)
    with pytest.raises(UserError) as caught:
        write_text(mounted / "a.txt", "x" * 100_000)
    assert str(caught.value) == (
        f"{mounted / 'a.txt'}: the disk is full; free some space or write elsewhere, and run again (it"
        f" needs more than the {leave_bytes:,} bytes free); the old file is intact"
    )
    assert sorted(path.name for path in mounted.iterdir()) == ["a.txt", "filler"]
    assert (mounted / "a.txt").read_text() == "old"


def test_every_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    """Though safetensors and tempfile write files of mode 0600."""
    before = os.umask(0o027)
    try:
        assert {row[2] for row in lines_of_writers(tmp_path)} == {"written"}
        with replacing(tmp_path / "by_tempfile") as temporary:
            os.replace(tempfile.mkstemp(dir=tmp_path)[1], temporary)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys([*WRITERS, "by_tempfile"], 0o640)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(UserError, match="a.txt: cannot be written: Is a directory"):
        write_text(tmp_path / "a.txt", "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/deep/a.txt: cannot be written: .*Not a directory$"):
        write_text(tmp_path / "file/deep/a.txt", "new")
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="Not a directory; set GUIE_CACHE to another folder$"):
        write_text(tmp_path / "file/checks/a.txt", "text")


@pytest.mark.parametrize("fault", [ValueError("a bug"), FileNotFoundError(2, "no", "b")])
def test_other_errors_pass_unchanged(tmp_path: Path, fault: Exception) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(type(fault)) as caught, replacing(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise fault
    assert caught.value is fault
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_the_content_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch) -> None:
    """After a power cut a renamed file that was not synchronised may be empty."""
    calls = []

    def sync(handle: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{handle}"))
        calls.append(("sync", "folder" if target.is_dir() else target.suffix))

    def replace(old: Path, new: Path) -> None:
        calls.append(("replace", Path(new).name))
        os.rename(old, new)

    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(files.os, "replace", replace)
    write_text(tmp_path / "a.txt", "new")
    assert calls == [("sync", ".txt"), ("replace", "a.txt"), ("sync", "folder")]
    assert (tmp_path / "a.txt").read_text() == "new"


def test_appending_is_all_or_nothing(mounted: Path) -> None:
    log = mounted / "metrics.jsonl"
    append_text(log, '{"step": 1}\n')
    fill(mounted, 0)
    with pytest.raises(UserError, match="metrics.jsonl: the disk is full"):
        append_text(log, "x" * 10_000)  # some of it fits into the last block
    append_text(log, '{"step": 2}\n')
    assert log.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.slow
def test_tensorboard_on_a_full_disk_ends_a_command_in_one_line(mounted: Path) -> None:
    program = """
import sys
from torch.utils.tensorboard import SummaryWriter
from guie.base import errors

def main(argv):
    writer = SummaryWriter(sys.argv[1])
    while True:
        writer.add_text("a", "x" * 10_000)
        writer.flush()

errors.run(main)
"""
    command = [sys.executable, "-c", program, str(mounted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    # The thread that writes may report it too.
    line = "error: a write failed: the disk is full; free some space or write elsewhere"
    assert set(done.stderr.splitlines()) == {line}


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("pipe", "zero", "socket", "."):
            with pytest.raises(UserError, match=f"{tmp_path / name}: not a regular file"):
                refuse_special(tmp_path / name)
    for name in ("file", "link", "absent"):
        refuse_special(tmp_path / name)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, "\xff"])
def test_a_file_that_is_no_json_gives_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text, encoding="latin-1")
    says = r"a\.json: not (JSON|a JSON object).*; export again"
    with pytest.raises(UserError, match=says) as caught:
        read_json(tmp_path / "a.json", "export again")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["demo", "sub x'; touch PWN; '", "$(touch PWN)", "a\nb", "é"])
def test_a_shell_takes_a_printed_path_as_one_word(name: str, tmp_path: Path) -> None:
    """And a terminal acts on no byte of it."""
    word = quoted(name)
    assert word.isprintable()
    command = ["bash", "-c", f"printf '<%s>' {word}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"<" + os.fsencode(name) + b">"
    assert not list(tmp_path.iterdir())


def test_two_processes_of_one_number_write_to_different_names(tmp_path: Path) -> None:
    """Containers that share a disk may number their processes alike."""
    with replacing(tmp_path / "a.txt") as one, replacing(tmp_path / "a.txt") as other:
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "a.txt").read_text() == "one" and len(list(tmp_path.iterdir())) == 1


def test_a_lock_names_its_holder(tmp_path: Path, monkeypatch) -> None:
    path, holder = tmp_path / ".lock", f"process {os.getpid()} on {socket.gethostname()}"
    path.write_text("process 12 on a-host-with-a-long-name.example")  # of an earlier lock
    with held(path, "taken", "wait"):
        with pytest.raises(UserError, match=rf"taken \({holder}\); wait"):
            with held(path, "taken", "wait", wait_s=0):
                pass

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", refused)
    with pytest.raises(UserError, match="lock: cannot be locked: No locks available; use a folder"):
        with held(path, "taken", "wait"):
            pass


def test_a_result_never_replaces_another_or_an_input(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a")
    a, b = tmp_path / "a", tmp_path / "b"
    refuse_replacing([a, None, b], [tmp_path / "c", None])
    for results, made_of in (([a], [tmp_path / "link"]), ([a, a], []), ([b, a], [a])):
        with pytest.raises(UserError, match="a: would replace .*; write it elsewhere"):
            refuse_replacing(results, made_of)
    with pytest.raises(UserError, match="is a folder; name a file"):
        refuse_replacing([tmp_path], [])
    a.write_text("mine")
    with pytest.raises(UserError, match="a: needed as a folder, but is a file"):
        refuse_replacing([a / "b" / "c"], [])
