"""Memory that a loader process takes for itself while it reads every row of a training table once.

python tests/bench/worker_memory.py [--rows 1000000]

Compared: the rows of `TrainDataset`, and the same columns as Python strings in an object array, as before
2026-11-26. Every number is the growth of the private memory of a forked process, which reads path and
label of all rows in random order, as `/proc/self/smaps_rollup` has it (Linux only).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from common import arguments, show

from guie.data.dataset import TrainDataset

Read = Callable[[int], object]


def private_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def read_all(rows: int, read: Read, answer: Connection) -> None:
    order = np.random.default_rng(0).permutation(rows)
    read(0)
    before = private_mb()
    for row in order:
        read(row)
    answer.send(private_mb() - before)


def growth_mb(rows: int, read: Read) -> float:
    fork, (here, there) = multiprocessing.get_context("fork"), multiprocessing.Pipe(False)
    process = fork.Process(target=read_all, args=(rows, read, there))
    process.start()
    grown = here.recv()
    process.join()
    return grown


def main() -> None:
    args = arguments(__doc__, rows=1_000_000)
    numbers = pd.Series(np.arange(args.rows)).astype(str)
    table = pd.DataFrame(
        {
            "image_path": "train/n" + numbers.str[:4] + "/image_" + numbers.str.zfill(9) + ".jpg",
            "label": "art/n" + numbers.str[:4],
        }
    )
    nothing = cast(Any, None)  # views are not drawn here
    dataset = TrainDataset(table, sorted(set(table["label"])), Path("."), nothing, nothing, (0, 0))
    paths, labels = table["image_path"].to_numpy(object), dataset.labels
    ways: dict[str, Read] = {
        "TrainDataset": lambda row: (dataset.paths[row], dataset.labels[row]),
        "Python strings": lambda row: (paths[row], labels[row]),
    }
    print(f"{args.rows:,} rows; private memory of one forked process")
    show(["", "MB"], ((name, growth_mb(args.rows, read)) for name, read in ways.items()))


if __name__ == "__main__":
    main()
