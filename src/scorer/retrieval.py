"""mMP@5, the challenge's metric.

Shape legend: Q queries, K neighbours.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd

from scorer.neighbours import K

PUBLIC_SHARE = 0.3
METRICS = ["mmp_at_5", "r_at_1"]


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
