"""mMP@5, the challenge's metric, over exact nearest neighbours at the speed of a float32 search.

Shape legend: Q queries, N index images, D dimension of an embedding, K neighbours, C candidates, B a
block of queries.
"""

from __future__ import annotations

import hashlib

import faiss
import numpy as np
import pandas as pd

K = 5
# Extra float32 candidates beyond K and the query itself: rounding may swap near-duplicates.
SPARE = 16
# Relative to squared norms: far above float64 rounding, far below float32 resolution.
ROUNDING = 1e-12
BLOCK_NUMBERS = 2**24
BLOCK_QUERIES = 512
PUBLIC_SHARE = 0.3
METRICS = ["mmp_at_5", "r_at_1"]


def nearest(
    query_QD: np.ndarray, index_ND: np.ndarray, own_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the K nearest index rows by Euclidean distance, excluding the query's own image.

    The search is exact. faiss finds candidates in float32, float64 differences order them, and ties go
    by index row. If rounding may have excluded a row from the candidates, the query is compared with
    the whole index in float64.

    Args:
        own_Q: index row of the query's own image, -1 where it is not in the index.

    Returns:
        Index rows (int64) and distances (float64), both [Q, K]; if the index has fewer than K
        other images, the rest is -1 and infinite.
    """
    rows_QK = np.full((len(query_QD), K), -1)
    distances_QK = np.full((len(query_QD), K), np.inf)
    rows_QC, beyond_Q = _candidates(query_QD, index_ND)
    rows_QC[rows_QC == own_Q[:, None]] = -1
    for start in range(0, len(query_QD), BLOCK_QUERIES):
        part = slice(start, start + BLOCK_QUERIES)
        rows_BK, distances_BK = _ordered(query_QD[part], index_ND, rows_QC[part])
        rows_QK[part, : rows_BK.shape[1]] = rows_BK
        distances_QK[part, : rows_BK.shape[1]] = distances_BK
    # Not `>=`: NaN must stay open. If all rows are candidates, the bound is infinite.
    open_Q = ~((distances_QK[:, -1] < beyond_Q) | (beyond_Q == np.inf))
    where = np.flatnonzero(open_Q)
    if len(where):
        rows_QK[where], distances_QK[where] = _exhaustive(query_QD[where], index_ND, own_Q[where])
    return rows_QK, distances_QK


def _candidates(query_QD: np.ndarray, index_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 candidates [Q, C], and per query a lower bound of all other distances [Q].

    With u = 2^-24, a squared distance by norms and a product, summed in any order, is off by at most
    (D + 8) u (|q| + |x|)^2 (Higham, Accuracy and Stability of Numerical Algorithms, 3.1); rounding
    the vectors to float32 adds 4 u (|q| + |x|)^2. Twice that is subtracted.
    """
    # Centre, to lose the least precision. Scale by a power of two, which is exact, so that squares
    # neither overflow nor vanish.
    centre_D = index_ND.mean(axis=0, dtype=np.float64).astype(np.float32)
    query_QD, index_ND = np.float32(query_QD) - centre_D, np.float32(index_ND) - centre_D
    largest = max(np.abs(query_QD).max(initial=0), index_ND.max(), -index_ND.min())
    scale = np.exp2(np.frexp(largest)[1], dtype=np.float32)
    query_QD /= scale
    index_ND /= scale
    index = faiss.IndexFlatL2(index_ND.shape[1])
    index.add(index_ND)
    squared_QC, rows_QC = index.search(query_QD, min(len(index_ND), K + 1 + SPARE))
    if rows_QC.shape[1] == len(index_ND):
        return rows_QC, np.full(len(query_QD), np.inf)
    reach_Q = np.linalg.norm(query_QD.astype(np.float64), axis=1)
    reach_Q += np.sqrt(np.einsum("nd,nd->n", index_ND, index_ND).max())
    error_Q = 2 * (query_QD.shape[1] + 12) * 2.0**-24 * np.square(reach_Q)
    return rows_QC, np.sqrt(np.maximum(squared_QC[:, -1] - error_Q, 0)) * scale


def _ordered(
    query_BD: np.ndarray, index_ND: np.ndarray, rows_BC: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the K nearest candidates by distance, then by row; candidates of -1 come last."""
    difference_BCD = index_ND[rows_BC].astype(np.float64) - query_BD[:, None].astype(np.float64)
    distances_BC = np.sqrt(np.square(difference_BCD).sum(axis=2))
    distances_BC[rows_BC < 0] = np.inf
    order_BK = np.lexsort((rows_BC, distances_BC))[:, :K]
    return np.take_along_axis(rows_BC, order_BK, 1), np.take_along_axis(distances_BC, order_BK, 1)


def _exhaustive(
    query_QD: np.ndarray, index_ND: np.ndarray, own_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `nearest` by a float64 matrix product with all rows."""
    query_QD, index_ND = query_QD.astype(np.float64), index_ND.astype(np.float64)
    norms_N = np.square(index_ND).sum(axis=1)
    rows_QK = np.full((len(query_QD), K), -1)
    distances_QK = np.full((len(query_QD), K), np.inf)
    block = max(1, BLOCK_NUMBERS // len(index_ND))
    for start in range(0, len(query_QD), block):
        query_BD = query_QD[start : start + block]
        # Squared distance minus the query's squared norm, which does not change the order.
        score_BN = norms_N - 2 * query_BD @ index_ND.T
        slack_B = ROUNDING * (np.square(query_BD).sum(axis=1) + norms_N.max())
        for i, score_N in enumerate(score_BN, start):
            if own_Q[i] >= 0:
                score_N[own_Q[i]] = np.inf
            # All rows that may be among the K nearest, including all ties with the last.
            last = min(K, len(score_N)) - 1
            bound = np.partition(score_N, last)[last] + slack_B[i - start]
            rows = np.flatnonzero((score_N <= bound) & np.isfinite(score_N))
            found, distances = _ordered(query_QD[i : i + 1], index_ND, rows[None])
            rows_QK[i, : found.shape[1]] = found[0]
            distances_QK[i, : found.shape[1]] = distances[0]
    return rows_QK, distances_QK


def own_rows(queries: pd.DataFrame, index: pd.DataFrame) -> np.ndarray:
    """Return the index row of each query's own image, or -1: int64, [Q]."""
    rows = pd.Series(np.arange(len(index)), index=index["image_path"])
    return rows.reindex(queries["image_path"], fill_value=-1).to_numpy()


def count_positives(queries: pd.DataFrame, index: pd.DataFrame) -> np.ndarray:
    """Count the other index images that share a label with each query: int64, [Q]."""
    sharing = _rows_sharing_a_label(queries, index)
    own_Q = own_rows(queries, index)
    return np.array(
        [len(sharing[t] - {own}) for t, own in zip(queries["label"], own_Q, strict=True)]
    )


def judge(
    queries: pd.DataFrame, index: pd.DataFrame, rows_QK: np.ndarray
) -> tuple[pd.DataFrame, np.ndarray]:
    """Score each query as the challenge does, given its neighbours' index rows.

    mMP@5 is the mean over queries of hits in the first min(5, n) places / min(5, n), n being the
    count of positives (google-research/universal_embedding_challenge, metrics.py,
    CalibratedPrecision). A query with n < 5 counts only its first n neighbours.

    Returns:
        `queries` with `positives` (n), `is_public`, `mmp_at_5` and `r_at_1` (NaN where n = 0);
        and a mask of relevant neighbours, bool [Q, K].
    """
    sharing = _rows_sharing_a_label(queries, index)
    relevant_QK = np.array(
        [
            [row in sharing[t] for row in rows]
            for t, rows in zip(queries["label"], rows_QK, strict=True)
        ]
    )
    positives_Q = count_positives(queries, index)
    window_Q = np.where(positives_Q > 0, np.minimum(positives_Q, K), np.nan)
    hits_Q = (relevant_QK & (np.arange(K) < window_Q[:, None])).sum(axis=1)
    judged = queries.assign(
        positives=positives_Q,
        is_public=[is_public(image_path) for image_path in queries["image_path"]],
        mmp_at_5=hits_Q / window_Q,
        r_at_1=np.where(positives_Q > 0, relevant_QK[:, 0], np.nan),
    )
    return judged, relevant_QK


def _rows_sharing_a_label(queries: pd.DataFrame, index: pd.DataFrame) -> dict[str, set[int]]:
    """Map each query's label text ("a" or "a|b") to the index rows that share one of its labels."""
    rows_of: dict[str, set[int]] = {}
    for row, text in enumerate(index["label"]):
        for label in text.split("|"):
            rows_of.setdefault(label, set()).add(row)
    return {
        text: set().union(*(rows_of.get(label, ()) for label in text.split("|")))
        for text in queries["label"].unique()
    }


def is_public(image_path: str) -> bool:
    """Return whether a query is in the public 30 %, by a hash of its path, so that it never changes."""
    digest = hashlib.sha256(image_path.encode()).digest()
    return int.from_bytes(digest[:8], "big") < PUBLIC_SHARE * 2**64
