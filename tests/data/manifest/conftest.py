"""A manifest that is written as a test wants it."""

from __future__ import annotations

import pytest
from manifest_rows import GOOD, HEADER

from guie.data.manifest.reading import sidecar_path


@pytest.fixture
def written(tmp_path):
    """Write a manifest (and a sidecar) and return its path."""

    def write(rows: str = GOOD, header: str = HEADER, sidecar: str | None = None):
        path = tmp_path / "m.csv"
        path.write_text(f"{header}\n{rows}\n", encoding="utf-8")
        if sidecar is not None:
            sidecar_path(path).write_text(sidecar, encoding="utf-8")
        return path

    return write
