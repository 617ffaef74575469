"""mMP@5, the challenge's metric, over exact nearest neighbours.

Shape legend: Q queries, N index images, D dimension of an embedding, K neighbours, C candidates, B a
block of queries.
"""

import hashlib

import numpy as np
import pandas as pd

K = 5
ROUNDING = 1e-12  # of a float64 product, relative to squared norms, with a large margin
BLOCK_NUMBERS = 2**24
PUBLIC_SHARE = 0.3
METRICS = ["mmp_at_5", "r_at_1"]


def nearest(
    query_QD: np.ndarray, index_ND: np.ndarray, own_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the K nearest index rows by Euclidean distance, excluding the query's own image.

    The search is exact: a float64 product finds all rows that may be among the nearest, and distances by
    differences order them. Ties go by index row.

    Args:
        own_Q: index row of the query's own image, -1 where it is not in the index.

    Returns index rows (int64) and distances (float64), both [Q, K]; if the index has fewer than K other
    images, the rest is -1 and infinite.
    """
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
            rows_C = np.flatnonzero((score_N <= bound) & np.isfinite(score_N))
            distances_C = np.sqrt(np.square(index_ND[rows_C] - query_QD[i]).sum(axis=1))
            order = np.lexsort((rows_C, distances_C))[:K]
            rows_QK[i, : len(order)] = rows_C[order]
            distances_QK[i, : len(order)] = distances_C[order]
    return rows_QK, distances_QK


def own_rows(queries: pd.DataFrame, index: pd.DataFrame) -> np.ndarray:
    """Return the index row of each query's own image, or -1: int64, [Q]."""
    rows = pd.Series(np.arange(len(index)), index=index["image_path"])
    return rows.reindex(queries["image_path"], fill_value=-1).to_numpy()


def count_positives(queries: pd.DataFrame, index: pd.DataFrame) -> np.ndarray:
    """Count the other index images that share a label with each query: int64, [Q]."""
    sharing = _rows_sharing_a_label(queries, index)
    own_Q = own_rows(queries, index)
    pairs = zip(queries["label"], own_Q, strict=True)
    return np.array([len(sharing[label] - {own}) for label, own in pairs])


def judge(
    queries: pd.DataFrame, index: pd.DataFrame, rows_QK: np.ndarray
) -> tuple[pd.DataFrame, np.ndarray]:
    """Score each query as the challenge does, given its neighbours' index rows.

    mMP@5 is the mean over queries of hits in the first min(5, n) places / min(5, n), n being the
    count of positives (google-research/universal_embedding_challenge, metrics.py,
    CalibratedPrecision). A query with n < 5 counts only its first n neighbours.

    Returns `queries` with `positives` (n), `is_public`, `mmp_at_5` and `r_at_1` (NaN where n = 0); and a
    mask of relevant neighbours, bool [Q, K].
    """
    sharing = _rows_sharing_a_label(queries, index)
    found = zip(queries["label"], rows_QK, strict=True)
    relevant_QK = np.array([[row in sharing[label] for row in rows] for label, rows in found])
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
