"""The scorer's search at the challenge's size, against faiss' flat index, in one run.

python tests/bench/challenge_search.py [--queries 5000] [--index 200000] [--twins 0.1]

Random unit vectors of 64 dimensions; a share of the index are copies of others, every second of them
moved by a rounding error. Printed: the best of three runs of each, and how many queries float32 could
not settle.
"""

from __future__ import annotations

import faiss
import numpy as np
from common import arguments, in_turn, show, unit_vectors

from scorer import retrieval

DIM = 64


def flat(queries_QD: np.ndarray, index_ND: np.ndarray) -> None:
    index = faiss.IndexFlatL2(DIM)
    index.add(index_ND)
    index.search(queries_QD, retrieval.K)


def main() -> None:
    args = arguments(__doc__, queries=5_000, index=200_000, twins=0.1)
    both_ND, copied = unit_vectors(args.queries + args.index, DIM, args.twins)
    both_ND[copied[::2], 0] = np.nextafter(both_ND[copied[::2], 0], np.float32(2))
    queries_QD, index_ND = both_ND[: args.queries], both_ND[args.queries :]
    own_Q = np.full(len(queries_QD), -1)
    slow, asked = retrieval._exhaustive, []
    retrieval._exhaustive = lambda *part: asked.append(len(part[0])) or slow(*part)
    ways = {
        "faiss flat": lambda: flat(queries_QD, index_ND),
        "scorer": lambda: retrieval.nearest(queries_QD, index_ND, own_Q),
    }
    best = {name: min(seconds) for name, seconds in in_turn(ways, 3, warm_up=False).items()}
    title = f"{args.queries:,} queries x {args.index:,} x {DIM}, a share of {args.twins} twins"
    show(["", "s", "/ faiss"], ((n, s, s / best["faiss flat"]) for n, s in best.items()), title)
    print(f"{asked[0] if asked else 0:,} queries compared with the whole index in float64")


if __name__ == "__main__":
    main()
