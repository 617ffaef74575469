"""A folder to curate in."""

from __future__ import annotations

import pytest
from curate_runs import draw_folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with one dataset of four classes, one bad file and one stray one."""
    monkeypatch.chdir(tmp_path)
    draw_folder(tmp_path / "input/toys", {"car": 9, "bus": 4, "cat": 5, "lone": 1})
    (tmp_path / "input/toys/cat/broken.png").write_text("not a picture")
    (tmp_path / "input/toys/cat/notes.txt").write_text("notes")
    return tmp_path
