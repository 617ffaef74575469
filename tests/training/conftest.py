"""A mix of toy images to train on and to validate with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_runs import mix_with_val


@pytest.fixture(scope="module")
def mix(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy benchmark with one train class of each domain moved to val."""
    return mix_with_val(toy_manifest, tmp_path_factory.mktemp("mix") / "mix.csv")
