"""The scorer's search at the challenge's size, against faiss' flat index, in one run.

python tests/bench/challenge_search.py [--queries 5000] [--index 200000] [--twins 0.1]

Random unit vectors of 64 dimensions; a share of the index are copies of others, every second of them
moved by a rounding error. Printed: the best of three runs of each, taken in turn, and how many
queries float32 could not settle.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import faiss
import numpy as np

from scorer import retrieval

DIM = 64


def vectors(count: int, twins: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    emb_ND = rng.standard_normal((count, DIM), dtype=np.float32)
    emb_ND /= np.linalg.norm(emb_ND, axis=1, keepdims=True)
    copied = rng.permutation(count)[: int(twins * count)]
    emb_ND[copied] = emb_ND[rng.integers(count, size=len(copied))]
    emb_ND[copied[::2], 0] = np.nextafter(emb_ND[copied[::2], 0], np.float32(2))
    return emb_ND


def flat(queries_QD: np.ndarray, index_ND: np.ndarray) -> None:
    index = faiss.IndexFlatL2(DIM)
    index.add(index_ND)
    index.search(queries_QD, retrieval.K)


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument("--index", type=int, default=200_000)
    parser.add_argument("--twins", type=float, default=0.1, help="share of the index (default: .1)")
    args = parser.parse_args()
    both_ND = vectors(args.queries + args.index, args.twins, seed=0)
    queries_QD, index_ND = both_ND[: args.queries], both_ND[args.queries :]
    own_Q = np.full(len(queries_QD), -1)
    slow, asked = retrieval._exhaustive, []
    retrieval._exhaustive = lambda *part: asked.append(len(part[0])) or slow(*part)
    rounds = [
        (
            timed(lambda: flat(queries_QD, index_ND)),
            timed(lambda: retrieval.nearest(queries_QD, index_ND, own_Q)),
        )
        for _ in range(3)
    ]
    peer, ours = (min(seconds) for seconds in zip(*rounds, strict=True))
    unsettled = asked[0] if asked else 0
    print(f"{args.queries:,} queries x {args.index:,} x {DIM}, a share of {args.twins} twins")
    print(f"faiss flat {peer:.2f} s, scorer {ours:.2f} s: {ours / peer:.2f} x", end="")
    print(f"; {unsettled:,} queries compared with the whole index in float64")


if __name__ == "__main__":
    main()
