"""Exact search at UnED's full size, against the bare matrix product and faiss' flat index, in one run.

python tests/bench/exact_search.py [--share 0.1]

Random unit vectors of 64 dimensions, a tenth of the index repeated. The index has all 1,397,126 images;
of the 241,986 queries, which are in the index, a share is searched. Memory is the process's peak.
"""

from __future__ import annotations

import faiss
import numpy as np
from common import arguments, in_turn, peak_gb, ratio, show
from tqdm import tqdm

from guie.evaluation.knn import ExactIndex

QUERIES, INDEX, DIM, DEPTH = 241_986, 1_397_126, 64, 100
BLOCK = 4096  # queries, and index rows of the bare product


def unit_vectors() -> np.ndarray:
    """The index, float32 [INDEX, DIM]."""
    rng = np.random.default_rng(0)
    emb_ND = rng.standard_normal((INDEX, DIM), dtype=np.float32)
    emb_ND /= np.linalg.norm(emb_ND, axis=1, keepdims=True)
    copied = rng.permutation(INDEX)[: INDEX // 10]
    emb_ND[copied] = emb_ND[rng.integers(INDEX, size=len(copied))]
    return emb_ND


def product(queries_QD: np.ndarray, index_ND: np.ndarray) -> None:
    """The bare blocked product, whose result is not used."""
    out = np.empty((BLOCK, BLOCK), np.float32)
    for q in tqdm(range(0, len(queries_QD), BLOCK), "product"):
        block_BD = queries_QD[q : q + BLOCK]
        for n in range(0, len(index_ND), BLOCK):
            part_ND = index_ND[n : n + BLOCK]
            np.matmul(block_BD, part_ND.T, out=out[: len(block_BD), : len(part_ND)])


def flat(queries_QD: np.ndarray, index_ND: np.ndarray) -> None:
    index = faiss.IndexFlatIP(DIM)
    index.add(index_ND)
    for q in tqdm(range(0, len(queries_QD), BLOCK), "faiss"):
        index.search(queries_QD[q : q + BLOCK], DEPTH)


def ours(queries_QD: np.ndarray, index_ND: np.ndarray) -> None:
    index = ExactIndex(index_ND)
    for q in tqdm(range(0, len(queries_QD), BLOCK), "ours"):
        block_BD = queries_QD[q : q + BLOCK]
        index.search(block_BD, DEPTH, q + np.arange(len(block_BD)))


def main() -> None:
    args = arguments(__doc__, share=0.1)
    index_ND = unit_vectors()
    queries_QD = index_ND[: int(args.share * QUERIES)]
    base_gb = peak_gb()
    searches = {
        "bare product": lambda: product(queries_QD, index_ND),
        "faiss flat": lambda: flat(queries_QD, index_ND),
        "ours": lambda: ours(queries_QD, index_ND),
    }
    seconds = in_turn(searches, 1, warm_up=False)
    rows = (
        (way, taken[0], ratio(seconds, way, "bare product"), ratio(seconds, way, "faiss flat"))
        for way, taken in seconds.items()
    )
    title = f"{len(queries_QD):,} queries x {INDEX:,}, depth {DEPTH}"
    show(["", "s", "/ product", "/ faiss"], rows, title)
    print(f"peak memory {peak_gb():.2f} GB, {base_gb:.2f} of it before the searches")


if __name__ == "__main__":
    main()
