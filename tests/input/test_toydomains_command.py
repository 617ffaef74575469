"""`python -m toydomains`: what it writes, and one line where it cannot."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import toydomains
from toydomains.__main__ import main

# With None in its place `import guie` raises: the drawings must not need the package that reads them.
WITHOUT_GUIE = """
import runpy, sys
sys.modules["guie"] = None
runpy.run_module("toydomains", run_name="__main__", alter_sys=True)
"""


def test_the_command_draws(few, tmp_path):
    main(["--out", str(tmp_path / "t"), "--images", "56", "--workers", "1"])
    assert (tmp_path / "t/manifest.csv").read_text().count(".jpg") > 5


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--out", "new", "--images", "3"], "error: images: 3 is too few; ask for at least 56"),
        (["--out", "file/new", "--workers", "1"], "error: file/new: Not a directory"),
    ],
)
def test_a_fault_gets_one_line_and_needs_no_guie(tmp_path, words, line):
    (tmp_path / "file").touch()
    command = [sys.executable, "-c", WITHOUT_GUIE, *words]
    found_in = str(Path(toydomains.__file__).parents[1])
    message = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": found_in}, capture_output=True, text=True
    )
    assert message.returncode == 2 and message.stdout == "" and "Traceback" not in message.stderr
    assert message.stderr.splitlines()[-1].startswith(line)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


CURATE = "{src}/curate.py --config mix.yaml"
MIX = "name: mix\nout: mix.csv\nsources: [{kind: toy, path: toy}]\n"


@contextmanager
def drawing(folder: Path, command: str) -> Iterator[subprocess.Popen[str]]:
    """A command that draws, once it does; its errors end when all its processes have ended."""
    (folder / "mix.yaml").write_text(MIX)
    root = Path(toydomains.__file__).parents[2]
    words = f"{command.format(src=root / 'src')} --workers 2".split()
    path = os.pathsep.join([str(root / "src"), str(root / "input")])
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while "img/s" not in process.stderr.readline():  # of the bar
            assert process.poll() is None
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("command", ["-m toydomains --out toy", CURATE])
def test_ctrl_c_ends_all_processes_in_one_line(tmp_path, command):
    with drawing(tmp_path, command) as process:
        for _ in range(2):  # a terminal sends it to every process of the group
            os.killpg(process.pid, signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == 130 and errors.splitlines()[-1] == "interrupted"
    assert errors.count("interrupted") == 1 and "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_drawing_ends_with_the_curation_that_started_it(tmp_path, how):
    with drawing(tmp_path, CURATE) as process:
        process.send_signal(how)
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == -how
