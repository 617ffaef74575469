"""How the number of rows matters at the start of a training from shards.

python tests/bench/rows.py [--rows 1000000] [--classes 100000]

It packs a few drawn JPEGs into one shard, whose index repeats them under as many names as there are
rows. Then a process of its own starts as training does: it checks the index, finds which images were
decoded, lists the classes, hashes the rows for a later resume, and loads a first batch with two loader
processes. A second start reads the checked table and the places from the cache, mapped from disk. Memory is
the process's own peak above its imports; mapped files are not counted, as all processes share them.
"""

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
from accelerate import Accelerator
from common import AUGMENT, MEAN, STD, arguments, in_own_process, manifest_of, photographs, show

from guie.curation.packing import pack
from guie.data.augmentation import Augment
from guie.data.dataset import (
    TrainDataset,
    classes_of,
    distinct_rows,
    rows_hash,
    training_rows,
)
from guie.data.loader import TrainLoader
from guie.data.manifest import load_manifest
from guie.data.preprocess import Preprocess
from guie.data.sampling import RankBatches, Sampler
from guie.data.shards.index import read_facts, write_index
from guie.rows.checks import readable

IMAGES, HEIGHT = 64, 240  # that are drawn
SIZE_PX, BATCH, WORKERS = 112, 128, 2


def write_repeated(folder: Path, rows: int, classes: int) -> Path:
    """Write one shard of drawn images and an index that repeats them; return the index."""
    manifest = manifest_of(photographs(folder / "files", IMAGES, HEIGHT))
    index = pack(manifest, folder / "shards", 1 << 30, 1)
    once, facts = pd.read_parquet(index), read_facts(index)
    many = once.iloc[np.arange(rows) % len(once)].reset_index(drop=True)
    many["label"] = [f"d/{number % classes:07d}" for number in range(rows)]
    many["image_path"] = [f"{label}/{row:09d}.jpg" for row, label in enumerate(many["label"])]
    write_index(index, many, facts["shards"])
    return index


def start(index: Path) -> list[tuple[str, float, float]]:
    """Return (step, seconds, peak memory in GB above the imports) of a start."""
    multiprocessing.set_start_method("fork", force=True)  # Linux's default, which a spawn changed
    with OwnMemory() as memory:
        begun = memory.peak_gb()
        return [
            (name, seconds, max(0.0, memory.peak_gb() - begun))
            for name, seconds in steps_of_start(index)
        ]


class OwnMemory:
    """The peak of this process's memory without mapped files, read every two milliseconds."""

    def __enter__(self) -> Self:
        self.seen, self.left = 0, threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.left.set()
        self.thread.join()

    def peak_gb(self) -> float:
        """Return the peak since the last call."""
        peak, self.seen = max(self.seen, self._now()), 0
        return peak * 1024 / 1e9

    def _look(self) -> None:
        while not self.left.wait(0.002):
            self.seen = max(self.seen, self._now())

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Laps:
    """A clock: each call returns a step's name, and the seconds since the call before."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def __call__(self, name: str) -> tuple[str, float]:
        before, self.last = self.last, time.perf_counter()
        return name, self.last - before


def steps_of_start(index: Path) -> Iterator[tuple[str, float]]:
    lap = Laps()
    manifest = load_manifest(index)
    yield lap("read and check the index")
    one, dropped = Accelerator(cpu=True), index.with_name("dropped.csv")
    manifest = readable(one, manifest, ("train",), drop_bad=False, dropped=dropped)
    yield lap("map the places, look up which were decoded")
    rows = training_rows(manifest)
    labels = classes_of(distinct_rows([rows])).labels
    yield lap("list the classes")
    rows_hash([rows])
    yield lap("hash the rows")
    preprocess, augment = Preprocess(SIZE_PX, MEAN, STD), Augment(AUGMENT)
    dataset = TrainDataset(rows, labels, manifest.root, augment, preprocess, (0, 0))
    yield lap("make the data set")
    sampler = Sampler(rows["domain"], "shards", BATCH, (0, 0), shard_of_row=rows["shard"])
    batches = RankBatches(sampler, 0, 8, 0, 1)
    yield lap("make the sampler")
    next(iter(TrainLoader(dataset, batches, workers=WORKERS).loader))
    yield lap("load a first batch")


def main() -> None:
    args = arguments(__doc__, rows=1_000_000, classes=100_000)
    with tempfile.TemporaryDirectory() as name:
        os.environ["GUIE_CACHE"] = str(Path(name) / "cache")
        index = in_own_process(write_repeated, Path(name), args.rows, args.classes)
        size_mb = index.stat().st_size / 1e6
        print(f"{args.rows:,} rows of {args.classes:,} classes, an index of {size_mb:.0f} MB")
        for title in ("First start", "Second start"):
            steps = in_own_process(start, index)
            whole = ("in all", sum(row[1] for row in steps), max(row[2] for row in steps))
            show(["", "seconds", "peak, GB"], [*steps, whole], title)


if __name__ == "__main__":
    main()
