"""Retrieval metrics: map the relevance of each rank to one value per query.

Every metric takes the ranking of the index for one query, *without* the query's own image. The protocols
average its values (`guie.evaluation.protocols`).

Shape legend: Q queries, K ranks (best first).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # `validate.py --help` lists metrics, and must not wait for pandas
    import pandas as pd

# Depths that the benchmarks report: CUB and Cars 1, 2, 4, 8; SOP 1, 10, 100; In-Shop 1, 10, 20, 30, 40.
RECALL_DEPTHS = (2, 4, 8, 10, 20, 30, 40, 100)
STANDARD = (
    "r_at_1",
    "mmp_at_5",
    "map_at_100",
    "map_at_r",
    "r_precision",
    *(f"recall_at_{k}" for k in RECALL_DEPTHS),
)
ALL_POSITIVES = ("map_at_r", "r_precision")  # use as many ranks as a query has positives


def ranking_metrics(
    relevant_QK: np.ndarray, positives_Q: np.ndarray, keys: Sequence[str] = STANDARD
) -> dict[str, np.ndarray]:
    """Return the named metrics of every query; see `metric`. Raises ValueError without a positive."""
    if (positives_Q < 1).any():
        raise ValueError("a query without positives has no score: leave it out and count it")
    return {key: metric(key, relevant_QK, positives_Q) for key in keys}


def metric(key: str, relevant_QK: np.ndarray, positives_Q: np.ndarray) -> np.ndarray:
    """Return one metric of every query, [Q].

    With n positives, rel(i) at rank i, and P(i) the precision of the first i:

    * `r_at_1`, `recall_at_K`: whether any of the first K is relevant. This is metric learning's Recall@K,
      not IR's recall; `r_at_1` is UnED's R@1, also called precision at 1.
    * `mmp_at_5`: modified precision at 5, the challenge's metric: the precision of the first min(n, 5).
      Window and denominator shrink together: a single positive at rank 2 scores 0.
    * `r_precision`: the precision of the first n (Musgrave et al., arXiv 2003.08505).
    * `map_at_r`: the sum over i <= n of P(i) rel(i), over n (the same).
    * `map_at_K`: the sum over i <= K of P(i) rel(i), over min(n, K) (GLDv2, arXiv 2004.01804; UnED).
    * `found_at_K`: the number of positives in the first K over min(n, K): IR's recall (ILIAS).

    `relevant_QK` has as many ranks as `depth_of` the keys, or the index. n is without the query's own image.
    """
    if key == "mmp_at_5":
        window_Q = np.minimum(positives_Q, 5)
        return _within(relevant_QK, window_Q).sum(axis=1) / window_Q
    if key == "r_precision":
        return _within(relevant_QK, positives_Q).sum(axis=1) / positives_Q
    if key == "map_at_r":
        return _precision_sum(_within(relevant_QK, positives_Q)) / positives_Q
    k = _number(key)
    first_QK = relevant_QK[:, :k]
    if key.startswith("map_at_"):
        return _precision_sum(first_QK) / np.minimum(positives_Q, k)
    if key.startswith("found_at_"):
        return first_QK.sum(axis=1) / np.minimum(positives_Q, k)
    return np.asarray(first_QK.any(axis=1), np.float64)


def depth_of(keys: Iterable[str], most_positives: int) -> int:
    """Return the number of ranks that these metrics need, given the largest number of positives."""
    return max(most_positives if key in ALL_POSITIVES else _number(key) for key in keys)


def _number(key: str) -> int:
    """Return the k of a key. Raises ValueError for an unknown metric."""
    found = re.fullmatch(r"(?:r_at|mmp_at|map_at|recall_at|found_at)_([1-9]\d*)", key)
    if not found:
        raise ValueError(f"{key!r} is not a metric")
    return int(found[1])


def plain(values: pd.Series) -> dict[str, float | None]:
    """Convert scores by key to JSON numbers: None for NaN."""
    return {str(key): None if np.isnan(value) else float(value) for key, value in values.items()}


def gap(confidence_Q: np.ndarray, is_correct_Q: np.ndarray, has_answer_Q: np.ndarray) -> float:
    """Return global average precision (micro AP): one ranking of all answers, most confident first.

    It is the sum of P(i) rel(i) over the ranking, divided by the number of queries with an answer; NaN for
    none. Distractors are not in that number, but lower P. A confidence of -inf is no answer at all. Ties
    keep the order of the rows.
    """
    correct_Q = is_correct_Q[np.argsort(-confidence_Q, kind="stable")]
    precision_Q = correct_Q.cumsum() / np.arange(1, len(correct_Q) + 1)
    answers = has_answer_Q.sum()
    return float((precision_Q * correct_Q).sum() / answers) if answers else np.nan


def recognition(
    confidence_Q: np.ndarray, is_correct_Q: np.ndarray, has_answer_Q: np.ndarray
) -> dict[str, float]:
    """Return Met's numbers: GAP of all queries; GAP- and accuracy of those that have an answer."""
    known = has_answer_Q
    return {
        "gap": gap(confidence_Q, is_correct_Q, has_answer_Q),
        "gap_minus": gap(confidence_Q[known], is_correct_Q[known], has_answer_Q[known]),
        "accuracy": float(is_correct_Q[known].mean()) if known.any() else np.nan,
    }


def _within(relevant_QK: np.ndarray, window_Q: np.ndarray) -> np.ndarray:
    return relevant_QK & (np.arange(relevant_QK.shape[1]) < window_Q[:, None])


def _precision_sum(relevant_QK: np.ndarray) -> np.ndarray:
    hits_QK = relevant_QK.cumsum(axis=1)
    precision_QK = hits_QK / np.arange(1, relevant_QK.shape[1] + 1)
    return (precision_QK * relevant_QK).sum(axis=1)
