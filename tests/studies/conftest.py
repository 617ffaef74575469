"""A folder in which a study finds stand-ins for the four scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_studies import stand_in


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the four scripts are stand-ins, of which `fakes/` has the text."""
    stand_in(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, each stand-in in a process of its own."""
    stand_in(folder, monkeypatch, processes=True)
    return folder
