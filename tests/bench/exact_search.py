"""Exact search at UnED's full size, against the bare matrix product and faiss' flat index, in one run.

python tests/bench/exact_search.py [--share 0.1] [--queries 241986] [--index 1397126] [--depth 100]

Random unit vectors of 64 dimensions, a tenth of the index repeated, every query in the index. The
index is whole, of the queries a share is asked; memory is what the process held at most.
"""

from __future__ import annotations

import faiss
import numpy as np
import pandas as pd
from common import arguments, in_turn, peak_gb, ratio, show, unit_vectors
from tqdm import tqdm

from guie.evaluation.knn import ExactIndex
from guie.evaluation.metrics import STANDARD
from guie.evaluation.protocols.base import Headline, Part, Protocol
from guie.evaluation.protocols.evaluating import run_protocol

BLOCK = 4096  # queries, and index rows of the bare product
DIM = 64


def product(queries_QD: np.ndarray, index_ND: np.ndarray) -> None:
    """The bare blocked product, whose result nobody looks at."""
    out = np.empty((BLOCK, BLOCK), np.float32)
    for q in tqdm(range(0, len(queries_QD), BLOCK), "product"):
        block_BD = queries_QD[q : q + BLOCK]
        for n in range(0, len(index_ND), BLOCK):
            part_ND = index_ND[n : n + BLOCK]
            np.matmul(block_BD, part_ND.T, out=out[: len(block_BD), : len(part_ND)])


def flat(queries_QD: np.ndarray, index_ND: np.ndarray, depth: int) -> None:
    index = faiss.IndexFlatIP(DIM)
    index.add(index_ND)
    for q in tqdm(range(0, len(queries_QD), BLOCK), "faiss"):
        index.search(queries_QD[q : q + BLOCK], depth)


def ours(queries_QD: np.ndarray, index_ND: np.ndarray, depth: int) -> None:
    index = ExactIndex(index_ND)
    for q in tqdm(range(0, len(queries_QD), BLOCK), "ours"):
        block_BD = queries_QD[q : q + BLOCK]
        index.search(block_BD, depth, q + np.arange(len(block_BD)))


def whole(queries: int, index_ND: np.ndarray, keys: tuple[str, ...]) -> None:
    """A protocol from embeddings to report, intervals included: classes of 4 to 16 images."""
    rng = np.random.default_rng(2)
    classes = np.repeat(np.arange(len(index_ND)), rng.integers(4, 17, len(index_ND)))
    labels = pd.Series(classes[: len(index_ND)]).astype(str)
    table = pd.DataFrame(
        {
            "image_path": np.arange(len(index_ND)).astype(str),
            "label": labels,
            "domain": "d" + (classes[: len(index_ND)] % 8).astype(str).astype(object),
            "role": np.where(np.arange(len(index_ND)) < queries, "both", "index"),
        }
    )
    part = Part("merged", "merged", keys)
    headline = Headline("R@1", "merged", "mean", "r_at_1")
    run_protocol(Protocol("bench", "", "", (part,), (headline,)), index_ND, table)


def main() -> None:
    args = arguments(__doc__, queries=241_986, index=1_397_126, depth=100, share=0.1)
    index_ND, _ = unit_vectors(args.index, DIM, twins=0.1)
    asked = int(args.share * args.queries)
    queries_QD = index_ND[:asked]
    base_gb = peak_gb()
    print(f"{asked:,} of {args.queries:,} queries x {args.index:,}, depth {args.depth}")
    searches = {
        "bare product": lambda: product(queries_QD, index_ND),
        "faiss flat": lambda: flat(queries_QD, index_ND, args.depth),
        "ours": lambda: ours(queries_QD, index_ND, args.depth),
    }
    seconds = in_turn(searches, 1, warm_up=False)
    print(f"search: most memory {peak_gb():.2f} GB, {base_gb:.2f} of it before")
    uned = ("r_at_1", "mmp_at_5", "map_at_100")
    reports = {
        "report, UnED's metrics": lambda: whole(asked, index_ND, uned),
        "report, all metrics": lambda: whole(asked, index_ND, STANDARD),
    }
    seconds |= in_turn(reports, 1, warm_up=False)
    rows = (
        (way, taken[0], ratio(seconds, way, "bare product"), ratio(seconds, way, "faiss flat"))
        for way, taken in seconds.items()
    )
    show(["", "s", "/ product", "/ faiss"], rows)
    print(f"in all: most memory {peak_gb():.2f} GB")


if __name__ == "__main__":
    main()
