"""Strings of a table cost a loader process nothing, and are those of the table."""

from __future__ import annotations

import copy
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from guie.data.columns import StringColumn


def private_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def read_all(column: StringColumn, answer: Connection) -> None:
    assert column[0]
    before = private_mb()
    for row in range(len(column)):
        column[row]
    answer.send(private_mb() - before)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc/self/smaps_rollup")
def test_a_forked_process_shares_the_rows() -> None:
    """Python strings would take 8 MB of each process here; the interpreter itself takes some."""
    names = [f"train/ö-{n % 100}/image-{n:09d}.jpg" for n in range(100_000)]
    column = copy.deepcopy(StringColumn(np.array(names)))  # as a spawned process gets it
    assert list(column) == names and column[np.int64(2)] == names[2]
    assert column.take(np.array([3, 0, 0])) == [names[3], names[0], names[0]]
    here, there = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=read_all, args=(column, there))
    process.start()
    grown = here.recv()
    process.join()
    assert grown < 5
