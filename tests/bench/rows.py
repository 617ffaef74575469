"""What the number of rows costs at the start of a training from shards: seconds and memory, step by step.

python tests/bench/rows.py [--rows 1000000] [--classes 100000] [--images 64] [--size-px 112]
                            [--workers 2] [--sampler shards]

Packs a few drawn JPEGs into one shard. The index repeats them under as many names as there are rows. Then
a process of its own starts as training does: read and check the index, look up which images were decoded,
list the classes, hash the rows for a later resume, make data set and sampler, load a first batch
with worker processes. At the second start the checked table and the places are in the cache, mapped from
disk. Memory is what the process itself holds at most, more than after its imports; mapped files are not
counted, as all processes share them.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import Accelerator
from common import apart, arguments, photographs, show

from guie.config.stages import AugmentConfig
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
from guie.rows.readable import readable

BATCH = 128
HEIGHT = 240  # of the drawn images


def write_repeated(folder: Path, images: int, rows: int, classes: int) -> Path:
    """Write one shard of drawn images and an index that repeats them; return the index."""
    (folder / "files").mkdir()
    files = photographs(folder / "files", images, HEIGHT)
    table = pd.DataFrame({"image_path": [file.name for file in files], "label": "d/0"})
    table = table.assign(domain="d", split="train", role="train")
    table.to_csv(folder / "files/m.csv", index=False)
    index = pack(load_manifest(folder / "files/m.csv"), folder / "shards", 1 << 30, 1)
    once, facts = pd.read_parquet(index), read_facts(index)
    many = once.iloc[np.arange(rows) % len(once)].reset_index(drop=True)
    many["label"] = [f"d/{number % classes:07d}" for number in range(rows)]
    many["image_path"] = [f"{label}/{row:09d}.jpg" for row, label in enumerate(many["label"])]
    write_index(index, many, facts["shards"])
    return index


def start(index: Path, size_px: int, workers: int, sampler: str) -> list[tuple[str, float, float]]:
    """Return (step, seconds, peak memory in GB above the imports) of a start."""
    multiprocessing.set_start_method("fork", force=True)  # Linux's default, which `apart` changed
    with OwnMemory() as memory:
        begun = memory.peak_gb()
        return [
            (name, seconds, max(0.0, memory.peak_gb() - begun))
            for name, seconds in _steps(index, size_px, workers, sampler)
        ]


class OwnMemory:
    """The peak of this process's memory without mapped files, looked up every two milliseconds."""

    def __enter__(self) -> OwnMemory:
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


def _steps(index: Path, size_px: int, workers: int, kind: str) -> Iterator[tuple[str, float]]:
    clock = time.perf_counter()

    def step(name: str) -> tuple[str, float]:
        nonlocal clock
        before, clock = clock, time.perf_counter()
        return name, clock - before

    manifest = load_manifest(index)
    yield step("read and check the index")
    one, dropped = Accelerator(cpu=True), index.with_name("dropped.csv")
    manifest = readable(one, manifest, ("train",), drop_bad=False, dropped=dropped)
    yield step("map the places, look up which were decoded")
    rows = training_rows(manifest)
    labels = classes_of(distinct_rows([rows])).labels
    yield step("list the classes")
    rows_hash([rows])
    yield step("hash the rows")
    preprocess = Preprocess(size_px, [0.5] * 3, [0.25] * 3)
    dataset = TrainDataset(
        rows, labels, manifest.root, Augment(AugmentConfig()), preprocess, (0, 0)
    )
    yield step("make the data set")
    sampler = Sampler(rows["domain"], kind, BATCH, (0, 0), shard_of_row=rows["shard"])
    batches = RankBatches(sampler, 0, 8, 0, 1)
    yield step("make the sampler")
    loading = iter(TrainLoader(dataset, batches, workers=workers).loader)
    next(loading)
    yield step("load a first batch")


def main() -> None:
    args = arguments(
        __doc__,
        rows=1_000_000,
        classes=100_000,
        images=64,
        size_px=112,
        workers=2,
        sampler="shards",
    )
    with tempfile.TemporaryDirectory() as name:
        os.environ["GUIE_CACHE"] = str(Path(name) / "cache")
        index = apart(write_repeated, Path(name), args.images, args.rows, args.classes)
        size_mb = index.stat().st_size / 1e6
        print(f"{args.rows:,} rows of {args.classes:,} classes, an index of {size_mb:.0f} MB")
        for title in ("First start", "Second start"):
            steps = apart(start, index, args.size_px, args.workers, args.sampler)
            whole = ("in all", sum(row[1] for row in steps), max(row[2] for row in steps))
            show(["", "seconds", "peak, GB"], [*steps, whole], title)


if __name__ == "__main__":
    main()
