"""Time and memory of asking a store of computed rows what is missing, of N keys, and of reading rows.

python tests/bench/store.py --keys 10000000
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from guie.rows.states import States
from guie.rows.store import Store

BLOCK = 4096
NEW = 1000  # images that the store lacks
READ = 8192  # rows read at random


def main() -> None:
    """Fill a store, ask it twice, and print seconds and the peak of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    count = (args := parser.parse_args()).keys
    names = [f"{number % 300_000:06d}/{number:08d}.jpg" for number in range(count + NEW)]
    states = States(names, np.full(count + NEW, 60_000), np.arange(count + NEW) + 10**18)
    shown("names, sizes and times", 0.0)
    started = time.perf_counter()
    assert len(states.key_N) == count + NEW
    shown("their keys", time.perf_counter() - started)
    with TemporaryDirectory() as folder:
        store = Store(Path(folder), {"bench": args.dim}, np.float16)
        rows = np.zeros((BLOCK, args.dim), np.float16)
        started = time.perf_counter()
        for first in range(0, count, BLOCK):
            part = np.arange(first, min(first + BLOCK, count))
            rows[:, 0] = part[0] % 1000  # else all blocks would be one file
            store.add(states.take(part), rows[: len(part)])
        shown("adding them", time.perf_counter() - started)
        started = time.perf_counter()
        assert len(store.missing(states)) == NEW
        shown("asking what is missing", time.perf_counter() - started)
        started = time.perf_counter()
        opened = store.open(states, args.dim)
        shown("opening", time.perf_counter() - started)
        started = time.perf_counter()
        opened[np.random.default_rng(0).integers(0, count, READ)]
        shown(f"reading {READ:,} rows", time.perf_counter() - started)


def shown(what: str, seconds: float) -> None:
    """Print a step's time, and the peak of memory so far."""
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{what:24} {seconds:8.1f} s   {peak_gb:6.2f} GB at most so far")


if __name__ == "__main__":
    main()
