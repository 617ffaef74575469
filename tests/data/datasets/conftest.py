"""A fixture that builds a dataset in small and reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from guie.data.datasets import DATASETS, Reading, read_dataset
from guie.data.datasets.finding import find
from miniatures import MINIATURES, SMALL_SPLITS


@pytest.fixture
def mini(tmp_path):
    """Build a dataset in small, find it, and read it without its real counts."""

    def read(name: str, make=None, build: bool = True, **how) -> Reading:
        if build:
            (make or MINIATURES[name])(tmp_path)
        dataset = DATASETS[name]
        folder = find(dataset, [tmp_path])
        how = {**SMALL_SPLITS.get(name, {}), **how}
        return read_dataset(replace(dataset, expected=()), folder, **how)

    return read
