"""Exact nearest neighbours, and mMP@5, the challenge's metric.

Shape legend: Q queries, N index images, D numbers of an embedding, K neighbours, B a block of
queries.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd

K = 5
PUBLIC_SHARE = 0.3
METRICS = ["mmp_at_5", "r_at_1"]
# Of the squared norms: far above float64 rounding, far below float32 resolution.
ROUNDING = 1e-12
BLOCK_NUMBERS = 2**24


def own_rows(queries: pd.DataFrame, index: pd.DataFrame) -> np.ndarray:
    """Return for each query the index row that holds the query's own image, or -1: int64, [Q]."""
    rows = pd.Series(np.arange(len(index)), index=index["image_path"])
    return rows.reindex(queries["image_path"], fill_value=-1).to_numpy()


def nearest(
    query_QD: np.ndarray, index_ND: np.ndarray, own_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the K nearest index rows by Euclidean distance, the query's own image left out.

    The search is exact: candidates come from a matrix product in float64, their order from the
    differences themselves; equal distances go by index row. A library's float32 search orders
    near-duplicates by its rounding.

    Returns:
        Index rows (int64) and distances (float64), both [Q, K]; where the index has fewer than K
        other images, the rest is -1 and infinite.
    """
    query_QD, index_ND = query_QD.astype(np.float64), index_ND.astype(np.float64)
    norms_N = np.square(index_ND).sum(axis=1)
    rows_QK = np.full((len(query_QD), K), -1)
    distances_QK = np.full((len(query_QD), K), np.inf)
    block = max(1, BLOCK_NUMBERS // len(index_ND))
    for start in range(0, len(query_QD), block):
        query_BD = query_QD[start : start + block]
        # Squared distance less the query's own norm, which does not change the order.
        score_BN = norms_N - 2 * query_BD @ index_ND.T
        slack_B = ROUNDING * (np.square(query_BD).sum(axis=1) + norms_N.max())
        for i, score_N in enumerate(score_BN, start):
            if own_Q[i] >= 0:
                score_N[own_Q[i]] = np.inf
            rows = _candidates(score_N, slack_B[i - start])
            distances = np.sqrt(np.square(index_ND[rows] - query_QD[i]).sum(axis=1))
            order = np.lexsort((rows, distances))[:K]
            rows_QK[i, : len(order)] = rows[order]
            distances_QK[i, : len(order)] = distances[order]
    return rows_QK, distances_QK


def _candidates(score_N: np.ndarray, slack: float) -> np.ndarray:
    """Return the rows that may be among the K nearest, all ties with the last one included."""
    last = min(K, len(score_N)) - 1
    bound = np.partition(score_N, last)[last] + slack
    return np.flatnonzero((score_N <= bound) & np.isfinite(score_N))


def count_positives(queries: pd.DataFrame, index: pd.DataFrame) -> np.ndarray:
    """Count for each query the other index images that share a label with it: int64, [Q]."""
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
    CalibratedPrecision). A query with n < 5 looks at its first n neighbours only.

    Returns:
        `queries` with `positives` (n), `is_public`, `mmp_at_5` and `r_at_1` (NaN where n = 0);
        and which neighbours are relevant, bool [Q, K].
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
    """Tell whether a query belongs to the public 30 %, by a hash of its path: it never moves."""
    digest = hashlib.sha256(image_path.encode()).digest()
    return int.from_bytes(digest[:8], "big") < PUBLIC_SHARE * 2**64
