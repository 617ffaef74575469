"""A write that the system refuses: one clear line, the old file intact, nothing left behind."""

from __future__ import annotations

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

from guie.base import errors, files
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

# Writes NEW by each library below a limit on the size of files, and tells what came of it.
WRITER = """
import io, resource, signal, sys, tarfile
from pathlib import Path
import matplotlib
matplotlib.use("Agg")
import faiss, numpy as np, pandas as pd, pyarrow as pa, pyarrow.parquet as pq, torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import save_file
from guie.base.errors import UserError
from guie.base.files import held
from guie.base.files import append_text, replacing, save_arrays, write_json

folder, limits = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
pixels = np.random.default_rng(0).integers(0, 256, (300, 300), dtype=np.uint8)
table, tensors = pd.DataFrame(pixels).rename(columns=str), {"a": torch.from_numpy(pixels)}

def figure(path):
    chart = Figure()
    chart.add_subplot().imshow(pixels)
    chart.savefig(path)

flat = faiss.IndexFlatL2(300)
flat.add(pixels.astype(np.float32))
rows = pa.Table.from_pandas(table)

def batches(path):
    with pq.ParquetWriter(path, rows.schema) as writer:
        for batch in rows.to_batches(20):
            writer.write_batch(batch)

def columns(path):
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
    "array.npy": lambda path: np.save(path, pixels),
    "table.csv": table.to_csv,
    "table.parquet": table.to_parquet,
    "chart.png": figure,
    "picture.png": Image.fromarray(pixels).save,
    "text.txt": lambda path: path.write_text("x" * 100_000),
    "index.faiss": lambda path: faiss.write_index(flat, str(path)),
    "batches.parquet": batches,
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
            told = "written"
        except UserError as error:
            told = str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(name, path.stat().st_size == 3, told, sep="\\t")
"""
# Each library's first byte, its first block, its header and its data.
LIMITS_BYTES = (0, 1, 600, 5_000, 12_000)
WRITERS = re.findall(r'^    "(.*?)":', WRITER, flags=re.MULTILINE)


def told_by_writers(folder: Path, *limits: int) -> list[list[str]]:
    command = [sys.executable, "-c", WRITER, str(folder), *map(str, limits)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def mount(folder: Path, options: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"no right to mount a small disk: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "size=256k")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, leave_bytes: int) -> None:
    """Take the space of a disk but for so many bytes."""
    free = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - leave_bytes))


@pytest.mark.slow
def test_every_writer_at_every_point_ends_in_one_line(tmp_path: Path) -> None:
    message = told_by_writers(tmp_path, *LIMITS_BYTES)
    assert [row[0] for row in message] == WRITERS * len(LIMITS_BYTES)
    for name, old_is_intact, line in message:
        assert old_is_intact == "True", name
        assert line == (
            f"{tmp_path / name}: larger than the file system or `ulimit -f` allows; raise it or"
            " write elsewhere, and run again; the old file is intact"
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(WRITERS)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_every_writers_file_has_the_mode_of_any_new_file(mask: int, tmp_path: Path) -> None:
    """Though safetensors writes files of mode 0600, and so does tempfile."""
    before = os.umask(mask)
    try:
        assert {row[2] for row in told_by_writers(tmp_path)} == {"written"}
        with replacing(tmp_path / "by_tempfile") as temporary:
            os.replace(tempfile.mkstemp(dir=tmp_path)[1], temporary)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys([*WRITERS, "by_tempfile"], 0o666 & ~mask)


@pytest.mark.slow
@pytest.mark.parametrize("leave_bytes", [0, 8192])
def test_every_writer_on_a_full_disk(leave_bytes: int, small_disk: Path) -> None:
    for name in WRITERS:
        (small_disk / name).write_text("old")
    fill(small_disk, leave_bytes)
    message = told_by_writers(small_disk)
    assert [row[0] for row in message] == WRITERS
    for name, old_is_intact, line in message:
        assert old_is_intact == "True", name
        assert line == (
            f"{small_disk / name}: the disk is full; free some space or write elsewhere, and run"
            f" again (it needs more than the {leave_bytes:,} bytes free); the old file is intact"
        )
    assert sorted(path.name for path in small_disk.iterdir()) == sorted([*WRITERS, "filler"])


def test_a_read_only_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    mount(tmp_path / "disk", "ro")
    try:
        with pytest.raises(UserError) as caught:
            write_text(tmp_path / "disk/a.txt", "new")
    finally:
        subprocess.run(["umount", str(tmp_path / "disk")], check=True)
    name = f"{tmp_path}/disk/a.txt"
    assert str(caught.value) == f"{name}: cannot be written: Read-only file system; no file is left"


def test_a_folder_in_the_files_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(UserError, match="a.txt: cannot be written: Is a directory"):
        write_text(tmp_path / "a.txt", "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/deep/a.txt: cannot be written: .*Not a directory"):
        write_text(tmp_path / "file/deep/a.txt", "new")


@pytest.mark.parametrize(
    "fault",
    [ValueError("a fault of ours"), RuntimeError("unexpected"), FileNotFoundError(2, "no", "b")],
)
def test_other_errors_pass_as_they_are(tmp_path: Path, fault: Exception) -> None:
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
        real_sync(handle)

    def replace(old: Path, new: Path) -> None:
        calls.append(("replace", Path(new).name))
        real_replace(old, new)

    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(files.os, "replace", replace)
    write_text(tmp_path / "a.txt", "new")
    assert calls == [("sync", ".txt"), ("replace", "a.txt"), ("sync", "folder")]
    assert (tmp_path / "a.txt").read_text() == "new"


def test_appending_is_all_or_nothing(small_disk: Path) -> None:
    log = small_disk / "metrics.jsonl"
    append_text(log, '{"step": 1}\n')
    fill(small_disk, 0)
    with pytest.raises(UserError, match="metrics.jsonl: the disk is full"):
        append_text(log, "x" * 10_000)  # some of it fits into the last block
    assert log.read_text() == '{"step": 1}\n'
    append_text(log, '{"step": 2}\n')
    assert log.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (UserError("a.csv: no rows"), "error: a.csv: no rows\n"),
        (PermissionError(errno.EACCES, "no", "a.txt"), "error: a.txt: Permission denied\n"),
        (OSError(errno.EROFS, "no", Path("a.txt")), "error: a.txt: Read-only file system\n"),
        (
            OSError(errno.ENOSPC, "no"),
            "error: a write failed: the disk is full; free some space or write elsewhere\n",
        ),
        (
            OSError(errno.EDQUOT, "no", "a.txt"),
            "error: a.txt: the disk quota is used up; free some space or write elsewhere\n",
        ),
    ],
)
def test_a_command_tells_a_fault_of_the_system_in_one_line(fault, line, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        errors.run(lambda argv: (_ for _ in ()).throw(fault))
    assert caught.value.code == 2
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("fault", [KeyError("loss"), OSError("no errno"), OSError(9, "no name")])
def test_a_command_hides_no_fault_of_ours(fault: Exception) -> None:
    with pytest.raises(type(fault)):
        errors.run(lambda argv: (_ for _ in ()).throw(fault))


@pytest.mark.slow
def test_tensorboard_on_a_full_disk_ends_a_command_in_one_line(small_disk: Path) -> None:
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
    command = [sys.executable, "-c", program, str(small_disk)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    # The thread that writes may tell it too.
    line = "error: a write failed: the disk is full; free some space or write elsewhere"
    assert set(done.stderr.splitlines()) == {line}


def test_what_is_no_regular_file_is_refused_and_not_opened(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match=r"'a\\x00b': not a valid file name"):
        refuse_special("a\0b")


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, "9" * 6_000, "\xff"])
def test_json_that_is_none_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text, encoding="latin-1")
    with pytest.raises(
        UserError, match=r"a\.json: not (JSON|a JSON object).*; export again"
    ) as caught:
        read_json(tmp_path / "a.json", "export again")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["demo", "sub x'; touch PWN; '", "$(touch PWN)", "a\nb", "\x1b]0;t\x07", "é", "caf\udce9"],
)
def test_a_shell_takes_a_printed_path_as_one_word(name: str, tmp_path: Path) -> None:
    """And a terminal acts on no byte of it."""
    word = quoted(name)
    assert word.isprintable()
    command = ["bash", "-c", f"printf '<%s>' {word}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"<" + os.fsencode(name) + b">"
    assert not list(tmp_path.iterdir())


def test_two_processes_of_one_number_write_to_different_names(tmp_path: Path) -> None:
    """Containers number their processes alike, and may share a disk."""
    with replacing(tmp_path / "a.txt") as one, replacing(tmp_path / "a.txt") as other:
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "a.txt").read_text() == "one" and len(list(tmp_path.iterdir())) == 1


def test_a_lock_takes_no_file_of_somebodys(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    for content in ("", "process 12 on a-host"):  # what a lock leaves
        path.write_text(content)
        with held(path, "taken", "wait"):
            pass
    for content in (b"my notes\n", b"caf\xe9"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="lock: needed as a lock file, but holds other content"):
            with held(path, "taken", "wait"):
                pass
        assert path.read_bytes() == content


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", refused)
    with pytest.raises(UserError, match="lock: cannot be locked: No locks available; use a folder"):
        with held(tmp_path / ".lock", "taken", "wait"):
            pass


def test_a_name_that_is_not_in_utf_8_is_told(tmp_path: Path) -> None:
    """On stdout it stands escaped; where it would stand in a file it is refused."""
    program = """
import sys
from pathlib import Path
from guie.base import errors
from guie.base.files import write_json

def main(argv):
    print(sys.argv[1])
    write_json(Path("a.json"), {"name": sys.argv[1]})

errors.run(main)
"""
    command = [sys.executable, "-c", program, b"caf\xe9"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "caf\\udce9\n"
    assert "not UTF-8; rename it\n" in done.stderr and "Traceback" not in done.stderr


def test_a_result_never_replaces_another_or_what_it_is_made_of(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a")
    a, b = tmp_path / "a", tmp_path / "b"
    refuse_replacing([a, None, b], [tmp_path / "c", None])
    for results, made_of in (([a], [a]), ([a], [tmp_path / "link"]), ([a, a], []), ([b, a], [a])):
        with pytest.raises(UserError, match="a: would replace .*; write it elsewhere"):
            refuse_replacing(results, made_of)
    with pytest.raises(UserError, match="is a folder; name a file"):
        refuse_replacing([tmp_path], [])
    a.write_text("mine")
    with pytest.raises(UserError, match="a: needed as a folder, but is a file"):
        refuse_replacing([a / "b" / "c"], [])


def test_a_cache_that_cannot_be_written_names_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="Not a directory; set GUIE_CACHE to another folder$"):
        write_text(tmp_path / "file/checks/a.txt", "text")
    with pytest.raises(UserError, match="(File exists|Not a directory)$"):
        monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "other"))
        write_text(tmp_path / "file/a.txt", "text")
