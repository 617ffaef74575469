"""A drawing of two classes, to be made again and again."""

import pytest

from toydomains import dataset


@pytest.fixture
def few(monkeypatch):
    """Two classes instead of twenty-eight, to draw again and again."""
    plans = dataset.plan(56, 0, "benchmark")[:2]
    monkeypatch.setattr(dataset, "plan", lambda images, seed, part: plans)
