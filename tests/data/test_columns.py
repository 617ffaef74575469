"""Strings of a table cost a loader process nothing, and are those of the table."""

from __future__ import annotations

import copy
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from guie.data.columns import StringColumn

WORDS = ["a/b.jpg", "", "ä/ö.png", "c"]
ROWS = 100_000


@pytest.mark.parametrize("values", [WORDS, pd.Series(WORDS), iter(WORDS), np.array(WORDS)])
def test_it_holds_the_strings(values) -> None:
    column = copy.deepcopy(StringColumn(values))  # as a spawned process gets it
    assert list(column) == WORDS and len(column) == 4
    assert column[2] == column[np.int64(2)] == column[-2] == "ä/ö.png"
    assert column.take(np.array([3, 0, 0])) == ["c", "a/b.jpg", "a/b.jpg"]


def private_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def read_all(column: StringColumn, answer: Connection) -> None:
    assert column[0]
    before = private_mb()
    for row in range(ROWS):
        column[row]
    answer.send(private_mb() - before)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc/self/smaps_rollup")
def test_a_forked_process_shares_the_rows() -> None:
    """Python strings would take 8 MB of each process here; the interpreter itself takes some."""
    column = StringColumn(f"train/class-{n % 100}/image-{n:09d}.jpg" for n in range(ROWS))
    here, there = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=read_all, args=(column, there))
    process.start()
    grown = here.recv()
    process.join()
    assert grown < 5
