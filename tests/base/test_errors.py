"""A user's error is one line, printed by one process of a machine; a path that cannot be read says why."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

from guie.base import errors
from guie.base.errors import UserError, why_unreadable
from guie.base.files import read_json, refuse_missing
from guie.config.loading import read_values
from guie.data.archives import unpacked
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest
from guie.data.manifest.companions import read_companions
from guie.models.opening import refuse_no_model
from guie.models.weights import read_tensors

REASONS = {
    "link": ": a link that points nowhere",
    "below/x": "below is a link that points nowhere",
    "file/x": "file is a file, not a folder",
    "n" * 300: "File name too long",
    "round": "Too many levels of symbolic links",
    "folder": "is a folder, not a file",
    "pipe": "not a regular file",
    "absent": "no such file",
}
READERS = {
    "x.csv": load_manifest,
    "x.yaml": read_values,
    "x.json": lambda path: read_json(path, "write it"),
    "x.zip": unpacked,
    "x.png": open_as_seen,
    "x.safetensors": read_tensors,
    "run": lambda path: refuse_no_model(str(path), ""),
    "any": lambda path: refuse_missing([path]),
    "m.sidecar.yaml": lambda path: load_manifest(path.with_name("m.csv")),
    "m.boxes.csv": lambda path: read_companions(path.with_name("m.csv")),
}


def run(fault: Exception) -> None:
    """Run a command that raises this."""

    def main(_: object) -> None:
        raise fault

    errors.run(main)


@pytest.mark.parametrize(
    ("rank", "connected", "lines"),
    [(None, False, 1), ("0", False, 1), ("1", False, 0), ("1", True, 1)],
)
def test_one_process_reports_an_error_of_all(rank, connected, lines, monkeypatch, capsys):
    """Once processes are connected, an error may be of one of them alone."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(distributed, "is_initialized", lambda: connected)
    with pytest.raises(SystemExit) as left:
        run(UserError("run.yaml: seed: must be a number"))
    assert left.value.code == 2
    assert capsys.readouterr().err == "error: run.yaml: seed: must be a number\n" * lines


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (PermissionError(errno.EACCES, "no", "a.txt"), "a.txt: Permission denied"),
        (OSError(errno.EROFS, "no", Path("a.txt")), "a.txt: Read-only file system"),
        (
            OSError(errno.ENOSPC, "no"),
            "a write failed: the disk is full; free some space or write elsewhere",
        ),
        (
            OSError(errno.EDQUOT, "no", "a.txt"),
            "a.txt: the disk quota is used up; free some space or write elsewhere",
        ),
    ],
)
def test_a_fault_of_the_system_is_one_line(fault: OSError, line: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        run(fault)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {line}\n"


@pytest.mark.parametrize("fault", [KeyError("loss"), OSError("no errno"), OSError(9, "no name")])
def test_a_bug_keeps_its_traceback(fault: Exception) -> None:
    with pytest.raises(type(fault)):
        run(fault)


def command(main: str, *words: str | bytes) -> subprocess.CompletedProcess:
    """Run a command whose main has these lines, in a process of its own."""
    script = f"import os, signal, sys\nfrom guie.base import errors\ndef main(argv):\n{main}\n"
    line = [sys.executable, "-c", f"{script}\nerrors.run(main)", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def test_a_second_interrupt_ends_the_exit_without_a_traceback() -> None:
    done = command(
        "    import atexit\n    atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "    raise KeyboardInterrupt"
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")


def test_a_name_that_is_not_utf_8_is_escaped_or_refused(tmp_path: Path) -> None:
    done = command(
        "    print(sys.argv[1])\n    from guie.base.files import write_json\n"
        "    write_json(sys.argv[2], {'name': sys.argv[1]})",
        *(b"caf\xe9", str(tmp_path / "a.json")),
    )
    assert done.returncode == 2 and done.stdout == "caf\\udce9\n"
    assert "not UTF-8; rename it\n" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_is_that_of_the_system(name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "below").symlink_to("gone")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    why = why_unreadable(tmp_path / name)
    assert why is not None and str(tmp_path) in why and why.endswith(REASONS[name])
    assert why_unreadable(tmp_path / "file") is None
    assert why_unreadable(tmp_path, "run folder") is None
    assert why_unreadable(tmp_path / "folder", "file or folder") is None
    assert str(why_unreadable(tmp_path / "file", "run folder")).endswith("is a file, not a folder")


def test_a_file_of_another_user_is_not_called_absent(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    assert why_unreadable(tmp_path / "file") == f"{tmp_path / 'file'}: Permission denied"


@pytest.mark.parametrize("name", READERS)
def test_every_reader_names_a_link_that_points_nowhere(name: str, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("image_path,label,domain,split,role\na,d/a,d,train,train\n")
    (tmp_path / name).symlink_to(tmp_path / "gone" / name)
    with pytest.raises(UserError, match=f"{name}: a link that points nowhere") as caught:
        READERS[name](tmp_path / name)
    assert "no such" not in str(caught.value) and "\n" not in str(caught.value)
