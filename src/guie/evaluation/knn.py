"""Find exact nearest neighbours with deterministic ties, by faiss, without N x N memory.

Shape legend: B queries of one block, N index rows, U distinct unit vectors, D dimensions, K ranks
(best first), C candidates of a query before exclusions.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import faiss
import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.processes import usable_cores

# Those of one model [T, D], or by domain those of its specialist, which embeds that domain's queries and
# the whole index.
Embeddings = np.ndarray | Mapping[str, np.ndarray]

# Return the k most similar rows of each query [B, k], best first and -1 past the end, and their
# similarities. The rows of the queries' own images [B], -1 for none, are left out. `ExactIndex` and the
# engines of an index have such a search.
Find = Callable[[np.ndarray, int, np.ndarray], tuple[np.ndarray, np.ndarray]]

NOTHING = -np.inf  # similarity of an empty rank
RESERVED_BYTES = 2**28  # memory that faiss may use for the candidates of one block
CANDIDATE_BYTES = 32


class ExactIndex:
    """Exact inner-product search: most similar first, ties by the lower index row.

    With approximate search or undefined ties, a score would depend on more than the embedding. The
    flat search of faiss keeps the best candidates while it multiplies and never stores a whole row of
    similarities. Bit-equal vectors are indexed once, so that they tie exactly.
    """

    def __init__(self, index_ND: np.ndarray):
        """Take float32 vectors; unit vectors rank by cosine and by Euclidean distance alike."""
        index_ND = np.ascontiguousarray(index_ND, dtype=np.float32)
        first_N = first_equal_row(index_ND)
        self.size = len(index_ND)
        self.row_U = np.unique(first_N)
        self.has_twins = len(self.row_U) < self.size
        self.vector_UD = index_ND[self.row_U] if self.has_twins else index_ND
        if self.has_twins:
            # The rows of each vector, one after the other, lowest first.
            self.twin_N = np.argsort(first_N, kind="stable")
            self.start_U = np.searchsorted(first_N[self.twin_N], self.row_U)
            self.count_U = np.diff(np.append(self.start_U, self.size))

    def search(
        self, queries_BD: np.ndarray, k: int, own_B: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the min(k, N) most similar rows of each query, best first, and their similarities.

        Args:
            own_B: row of each query's own image, excluded before ranking; -1 for none.

        Returns: rows [B, K] and similarities [B, K]; ranks without a row have -1 and -inf.
        """
        own_B = np.full(len(queries_BD), -1) if own_B is None else own_B
        k = min(k, self.size)
        deep = k + int((own_B >= 0).any())
        row_BC, score_BC = self._candidates(np.ascontiguousarray(queries_BD, np.float32), deep)
        score_BC[row_BC == own_B[:, None]] = NOTHING
        order_BK = np.argsort(score_BC == NOTHING, axis=1, kind="stable")[:, :k]
        row_BK, score_BK = (np.take_along_axis(x, order_BK, 1) for x in (row_BC, score_BC))
        row_BK[score_BK == NOTHING] = -1
        return row_BK, score_BK

    def _candidates(self, queries_BD: np.ndarray, deep: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first `deep` rows of each query, or all, in order."""
        shape = len(queries_BD), min(deep, self.size)
        row_BC, score_BC = np.empty(shape, np.int64), np.empty(shape, np.float32)
        open_B, every, wanted = np.arange(len(queries_BD)), len(self.vector_UD), deep
        while len(open_B):
            # One extra candidate: only similarities above the last one are known to be complete.
            count = int(min(max(wanted, deep + 1), every))
            with search_threads():
                score_XC, vector_XC = faiss.knn(  # ties in any order
                    queries_BD[open_B], self.vector_UD, count, metric=faiss.METRIC_INNER_PRODUCT
                )
            done_X = np.full(len(open_B), True)
            if count < every:  # queries whose ties extend past the candidates take more of them
                done_X = score_XC[:, deep - 1] > score_XC[:, -1]
            if done_X.any():
                rows_XC, scores_XC = self._rows(vector_XC[done_X], score_XC[done_X], deep)
                row_BC[open_B[done_X]] = rows_XC[:, : shape[1]]
                score_BC[open_B[done_X]] = scores_XC[:, : shape[1]]
            open_B = open_B[~done_X]
            wanted *= 4
        return row_BC, score_BC

    def _rows(
        self, vector_BC: np.ndarray, score_BC: np.ndarray, deep: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors' rows, sorted by similarity, then row; at most `deep` rows a vector."""
        row_BC = self.row_U[vector_BC]
        if self.has_twins:
            row_BC, score_BC = self._twins(vector_BC, score_BC, deep)
        order_BC = np.lexsort((row_BC, -score_BC), axis=-1)
        return np.take_along_axis(row_BC, order_BC, 1), np.take_along_axis(score_BC, order_BC, 1)

    def _twins(
        self, vector_BC: np.ndarray, score_BC: np.ndarray, deep: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Expand every vector into its rows, and pad the shorter lists, to `deep` at least."""
        count_BC = np.minimum(self.count_U[vector_BC], deep)
        total_B = count_BC.sum(axis=1)
        width = int(total_B.max(initial=deep))
        query_E = np.repeat(np.arange(len(vector_BC)), total_B)  # E: (query, row) entries
        ends_E = np.repeat(np.cumsum(count_BC) - count_BC.ravel(), count_BC.ravel())
        nth_E = np.arange(len(query_E)) - ends_E
        row_E = self.twin_N[np.repeat(self.start_U[vector_BC].ravel(), count_BC.ravel()) + nth_E]
        place_E = np.arange(len(query_E)) - np.repeat(np.cumsum(total_B) - total_B, total_B)
        row_BC = np.full((len(vector_BC), width), self.size)
        wide_BC = np.full((len(vector_BC), width), NOTHING, np.float32)
        row_BC[query_E, place_E] = row_E
        wide_BC[query_E, place_E] = np.repeat(score_BC.ravel(), count_BC.ravel())
        return row_BC, wide_BC


def exact(unit_TD: np.ndarray, index_I: np.ndarray) -> Find:
    """Return the exact search in some rows of unit vectors, whose queries are rows too."""
    index = ExactIndex(unit_TD[index_I])
    return lambda query_B, k, own_B: index.search(unit_TD[query_B], k, own_B)


def unit_vectors(embeddings_TD: np.ndarray, paths: Sequence[str] | np.ndarray) -> np.ndarray:
    """Normalise to unit length, float32; a zero vector stays zero. Raises UserError if one is not finite."""
    if len(embeddings_TD) != len(paths):
        raise ValueError(f"{len(embeddings_TD)} embeddings for {len(paths)} rows")
    length_T = lengths(embeddings_TD, np.asarray(paths))
    length_T[length_T == 0] = 1
    return embeddings_TD.astype(np.float32) / length_T[:, None]


def lengths(
    embeddings_ND: np.ndarray, path_N: np.ndarray, source: str = "embeddings"
) -> np.ndarray:
    """Return Euclidean lengths in float32. Raises UserError if one is not finite."""
    with np.errstate(over="ignore"):
        length_N = np.linalg.norm(embeddings_ND.astype(np.float32, copy=False), axis=1)
    fault = f"{source}: a value that is not finite, or too large,"
    refuse(path_N[~np.isfinite(length_N)], fault, "check the model for NaN")
    return length_N


def refuse(paths: Sequence[str] | np.ndarray | pd.Index, fault: str, remedy: str) -> None:
    """Raise UserError if there are any paths, with their number and the first."""
    if len(paths):
        raise UserError(f"{fault} for {len(paths)} image(s), first {str(paths[0])!r}; {remedy}")


def block_size(ranks: int, most: int) -> int:
    """Return the number of queries to search at once for that many ranks, at most `most`."""
    return int(np.clip(RESERVED_BYTES // (CANDIDATE_BYTES * ranks), 1, most))


def first_equal_row(index_ND: np.ndarray) -> np.ndarray:
    """Return, for each row, the first row that is bit-equal to it, usually itself.

    Rows are hashed to a randomly weighted 64-bit sum, many times faster than sorting whole rows.
    """
    bits_NW = np.ascontiguousarray(index_ND).view(np.uint32)
    words = bits_NW.shape[1]
    weight_W = np.asarray(np.random.default_rng(0).integers(2**64, size=words, dtype=np.uint64))
    sum_N = np.zeros(len(bits_NW), np.uint64)
    for word in range(words):
        sum_N += bits_NW[:, word] * (weight_W[word] | np.uint64(1))
    _, first, group_N = np.unique(sum_N, return_index=True, return_inverse=True)
    first_N = first[group_N]
    later_N = np.flatnonzero(first_N != np.arange(len(first_N)))
    if (bits_NW[later_N] == bits_NW[first_N[later_N]]).all():
        return first_N
    _, first, group_N = np.unique(bits_NW, axis=0, return_index=True, return_inverse=True)
    return first[group_N.ravel()]


# Set by `accelerate launch` and by torchrun, which also set OMP_NUM_THREADS=1.
LAUNCHED = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")

_entered: ContextVar[bool] = ContextVar("_entered", default=False)


@contextmanager
def search_threads(processes: int = 1) -> Iterator[None]:
    """Run the searches of the block with all cores that this process may use, then restore the threads.

    `processes` of this machine search at the same time, and share its cores; by default the others wait. The
    outermost of several nested blocks decides. Without a launcher, and with any OMP_NUM_THREADS
    but 1, nothing changes: faiss takes all cores then, or as many as the user chose. A launcher's 1 looks the
    same as a user's.
    """
    launched = any(name in os.environ for name in LAUNCHED)
    if not launched or os.environ.get("OMP_NUM_THREADS") != "1" or _entered.get():
        yield
        return
    before, entered = faiss.omp_get_max_threads(), _entered.set(True)
    faiss.omp_set_num_threads(max(1, usable_cores() // processes))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
        _entered.reset(entered)
