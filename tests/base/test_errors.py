"""A user's error is one line, of one process of a machine."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from torch import distributed

from guie.base import errors
from guie.base.errors import UserError


def failing(_: object) -> None:
    raise UserError("run.yaml: seed: must be a number")


@pytest.mark.parametrize(
    ("rank", "connected", "lines"),
    [(None, False, 1), ("0", False, 1), ("1", False, 0), ("1", True, 1)],
)
def test_one_process_reports_what_all_of_them_find(
    rank: str | None,
    connected: bool,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Once processes are connected, an error may be of one of them alone."""
    if rank is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(distributed, "is_initialized", lambda: connected)
    with pytest.raises(SystemExit) as left:
        errors.run(failing)
    assert left.value.code == 2
    assert capsys.readouterr().err == "error: run.yaml: seed: must be a number\n" * lines


def test_a_second_interrupt_ends_the_exit_without_a_traceback() -> None:
    script = """
import atexit, os, signal

from guie.base import errors

def main(argv):
    raise KeyboardInterrupt

atexit.register(os.kill, os.getpid(), signal.SIGINT)
errors.run(main)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")
