"""A file that is there is never called absent: the line says what is in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import zeros

from guie.base.errors import UserError, why_unreadable
from guie.base.files import read_json, refuse_missing
from guie.config.loading import read_values
from guie.data.archives import unpacked
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest
from guie.models.opening import refuse_no_model
from guie.models.weights import read_tensors

LONG = "n" * 300
REASONS = {
    "link": ": a link that points nowhere",
    "below/x": "below is a link that points nowhere",
    "file/x": "file is a file, not a folder",
    LONG: "File name too long",
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
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "below").symlink_to("gone")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_is_that_of_the_system(name: str, place: Path) -> None:
    why = why_unreadable(place / name)
    assert why is not None and why.startswith(f"{place / name}: ") and why.endswith(REASONS[name])
    assert why_unreadable(place / "file") is None and why_unreadable(place, "run folder") is None
    assert why_unreadable(place / "folder", "file or folder") is None
    assert str(why_unreadable(place / "file", "run folder")).endswith("is a file, not a folder")


@pytest.mark.parametrize("name", READERS)
def test_no_reader_calls_a_link_that_points_nowhere_absent(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(tmp_path / "gone" / name)
    with pytest.raises(UserError, match=": a link that points nowhere") as caught:
        READERS[name](tmp_path / name)
    assert "no such" not in str(caught.value) and "\n" not in str(caught.value)


OTHER_USER = """
import os, sys
sys.path[:0] = sys.argv[2:]
import test_unreadable
from guie.base.errors import UserError
from pathlib import Path
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
for name, read in test_unreadable.READERS.items():
    try:
        read(Path(sys.argv[1]) / name)
    except UserError as error:
        print(name, str(error).splitlines()[0], sep="|")
"""


def test_no_reader_calls_a_file_of_another_user_absent(tmp_path: Path) -> None:
    for name in READERS:
        (tmp_path / name).mkdir() if name == "run" else (tmp_path / name).write_text("")
    save_file({"a": zeros(1)}, tmp_path / "x.safetensors")
    for path in tmp_path.iterdir():
        path.chmod(0)
    # Private folders of pytest are above: another user could not get there at all
    opened = [folder for folder in tmp_path.parents if folder.stat().st_uid == os.geteuid()]
    modes = [(folder, folder.stat().st_mode) for folder in (tmp_path, *opened)]
    try:
        for folder, mode in modes:
            folder.chmod(mode | 0o755)
        command = [sys.executable, "-c", OTHER_USER, tmp_path, *filter(None, sys.path)]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    finally:
        for folder, mode in modes:
            folder.chmod(mode)
        (tmp_path / "run").chmod(0o700)
    assert done.returncode == 0, done.stderr
    said = dict(line.split("|") for line in done.stdout.splitlines())
    assert said.keys() == READERS.keys()
    assert all("Permission denied" in why and "no such" not in why for why in said.values()), said


@pytest.mark.parametrize("end", ["sidecar.yaml", "boxes.csv"])
def test_a_companion_that_is_a_broken_link_is_not_passed_over(end: str, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("image_path,label,domain,split,role\na,d/a,d,train,train\n")
    (tmp_path / f"m.{end}").symlink_to("gone")
    with pytest.raises(UserError, match=f"m.{end}: .*points nowhere"):
        from guie.data.manifest.companions import read_companions

        load_manifest(tmp_path / "m.csv")
        read_companions(tmp_path / "m.csv")
