"""How many loader processes a process starts by default: its share of the cores it may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import embed
import search
from guie.base import processes
from guie.base.processes import loader_count, usable_cores
from guie.config.ensemble import ComposeConfig
from guie.config.training import DataConfig


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A machine of so many cores, with a quota file of this content, and ranks on it."""

    def built(cores: int, ranks: int | None = None, quota: str | None = None) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
        monkeypatch.setattr(processes, "QUOTA", tmp_path / "cpu.max")
        (tmp_path / "cpu.max").unlink(missing_ok=True)
        if quota:
            (tmp_path / "cpu.max").write_text(quota)
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        if ranks:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))

    return built


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"),
    [(2, None, 2), (1, None, 1), (12, 1, 12), (64, 8, 8), (96, 1, 16), (4, 8, 1), (30, 4, 7)],
)
def test_the_ranks_of_a_machine_share_its_cores(machine, cores, ranks, expected) -> None:
    machine(cores, ranks)
    assert loader_count(None) == expected


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("400000 100000\n", 4), ("50000 100000\n", 1), ("max 100000\n", 64), ("", 64)],
)
def test_the_quota_of_a_container_counts(machine, quota: str, expected: int) -> None:
    machine(64, quota=quota)
    assert usable_cores() == expected


def test_a_number_is_kept_and_no_loader_is_without_work(machine) -> None:
    machine(8)
    assert [loader_count(number) for number in (0, 1, 50)] == [0, 1, 50]
    assert [loader_count(None, batches) for batches in (0, 3, 100)] == [1, 3, 8]
    assert loader_count(5, 1) == 5


def test_it_is_the_default_everywhere() -> None:
    words = ["--model", "m", "--manifest", "m.csv", "--out", "o"]
    assert embed.parse_args(words).workers is None
    index = ["index", "--model", "m", "--images", "i", "--out", "o"]
    assert search.parse_args(index).workers is None
    assert DataConfig(manifest="m.csv").workers is None
    assert ComposeConfig.model_fields["workers"].default is None
