"""A query within one of ten domains of an index, against copying the domain's vectors, in one run.

python tests/bench/domain_query.py [--vectors 1000000 10000000]

Drawn unit vectors of 64 numbers are memory-mapped from a file, as an index has them. Both ways find the
rows of the domain among codes, and are exact. Memory is what numpy allocates at once.
"""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import arguments, in_turn, ratio, show, wall_and_cpu
from numpy.lib.format import open_memmap

from guie.search.engines import among

DIM, K, DOMAINS, TURNS, BLOCK = 64, 10, 10, 7, 1_000_000


def copying(vectors_ND: np.ndarray, rows_R: np.ndarray, query_D: np.ndarray) -> np.ndarray:
    score_R = vectors_ND[rows_R] @ query_D
    return rows_R[np.argsort(-score_R, kind="stable")[:K]]


def peak_mb(way: Callable[[], object]) -> float:
    tracemalloc.start()
    way()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes / 1e6


def measure(count: int, path: Path) -> None:
    rng = np.random.default_rng(0)
    written_ND = open_memmap(path, "w+", np.float32, (count, DIM))
    for at in range(0, count, BLOCK):
        block_BD = rng.standard_normal((min(BLOCK, count - at), DIM), dtype=np.float32)
        written_ND[at : at + BLOCK] = block_BD / np.linalg.norm(block_BD, axis=1, keepdims=True)
    del written_ND
    vectors_ND = np.asarray(np.load(path, mmap_mode="r"))
    code_N = rng.integers(0, DOMAINS, count).astype(np.uint8)
    query_D = np.array(vectors_ND[7])
    ways = {
        "in place": lambda: among(vectors_ND, np.flatnonzero(code_N == 3), query_D, K)[0],
        "a copy": lambda: copying(vectors_ND, np.flatnonzero(code_N == 3), query_D),
    }
    assert np.array_equal(ways["in place"](), ways["a copy"]())
    taken = in_turn(ways, TURNS, wall_and_cpu)
    rows = (
        (
            name,
            *(1e3 * np.median(taken[name], axis=0)),
            *ratio(taken, "a copy", name),
            peak_mb(ways[name]),
        )
        for name in ways
    )
    heads = ["", "ms", "ms of CPU", "x copy's s", "of CPU", "MB"]
    show(heads, rows, f"{count:,} vectors, {(code_N == 3).sum():,} of the domain")


if __name__ == "__main__":
    args = arguments(__doc__, vectors=[1_000_000, 10_000_000])
    for count in args.vectors:
        with tempfile.TemporaryDirectory() as folder:
            measure(count, Path(folder) / "vectors.npy")
