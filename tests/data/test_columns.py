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
from guie.data.dataset import EvalDataset, TrainDataset

WORDS = ["a/b.jpg", "", "ä/ö.png", "c"]
ROWS = 100_000


@pytest.mark.parametrize(
    "values",
    [WORDS, pd.Series(WORDS), pd.Series(WORDS, dtype=object), iter(WORDS), np.array(WORDS)],
)
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
@pytest.mark.parametrize("kind", ["train", "eval"])
def test_a_forked_process_shares_the_rows(kind: str) -> None:
    """Python strings would take 8 MB of each process here; the interpreter itself takes some."""
    names = [f"train/class-{number % 100}/image-{number:09d}.jpg" for number in range(ROWS)]
    if kind == "train":
        table = pd.DataFrame({"image_path": names, "label": "one"})
        column = TrainDataset(table, ["one"], Path("."), None, None, (0,)).paths
    else:
        column = EvalDataset([Path(name) for name in names], None).files
    del names
    here, there = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=read_all, args=(column, there))
    process.start()
    grown = here.recv()
    process.join()
    assert grown < 5
