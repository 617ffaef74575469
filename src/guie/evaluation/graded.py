"""Retrieval benchmarks with rules of their own: Revisited Oxford and Paris, ILIAS.

Revisited Oxford and Paris (Radenovic et al., CVPR 2018, arXiv 1803.11285; code
filipradenovic/revisitop) grade the index images of each query: easy, hard, junk, and negative, all
the rest. Three protocols say which grades must be found and which are taken out before ranks are
counted. Their AP is a trapezoidal area, not that of `guie.evaluation.metrics`.

ILIAS (repository ilias-vrg/ilias) ranks 1,000 images of a hundred million.

Everywhere the query's own image is no part of the ranking. A query without positives has NaN: average
with `np.nanmean`, and count them.

Shape legend: Q queries, K ranks (best first), P positives of one query in the order of their ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

NEGATIVE, EASY, HARD, JUNK = range(4)
DEPTHS = (1, 5, 10)
ILIAS_DEPTH = 1000


class Protocol(NamedTuple):
    """Grades that count as found, and grades that are taken out of the ranking."""

    positive: tuple[int, ...]
    ignored: tuple[int, ...]


PROTOCOLS = {
    "easy": Protocol(positive=(EASY,), ignored=(HARD, JUNK)),
    "medium": Protocol(positive=(EASY, HARD), ignored=(JUNK,)),
    "hard": Protocol(positive=(HARD,), ignored=(EASY, JUNK)),
}


def revisited(grade_QK: np.ndarray, depths: Iterable[int] = DEPTHS) -> dict[str, np.ndarray]:
    """All three protocols: `easy_ap`, `easy_p_at_5`, `medium_ap` ..., each [Q].

    The means over queries are the benchmark's mAP and mP@k.

    Args:
        grade_QK: the grades along each query's ranking of the whole index.
        depths: the k of precision at k.

    Raises:
        ValueError: a grade that does not exist.
    """
    scores: dict[str, list[float]] = {}
    for grade_K in np.asarray(grade_QK):
        for name, protocol in PROTOCOLS.items():
            rank_P = graded_ranking(grade_K, protocol)
            scores.setdefault(f"{name}_ap", []).append(average_precision_trapezoid(rank_P))
            for k in depths:
                scores.setdefault(f"{name}_p_at_{k}", []).append(precision_at(rank_P, k))
    return {key: np.array(values_Q) for key, values_Q in scores.items()}


def graded_ranking(grade_K: np.ndarray, protocol: Protocol) -> np.ndarray:
    """Ranks of a query's positives, from 0, counted without the images that are ignored: [P].

    Raises:
        ValueError: a grade that does not exist.
    """
    grade_K = np.asarray(grade_K)
    if not np.isin(grade_K, (NEGATIVE, EASY, HARD, JUNK)).all():
        raise ValueError(f"grades are {NEGATIVE} to {JUNK}, not {np.unique(grade_K).tolist()}")
    kept_K = grade_K[~np.isin(grade_K, protocol.ignored)]
    return np.flatnonzero(np.isin(kept_K, protocol.positive))


def average_precision_trapezoid(rank_P: np.ndarray, positives: int | None = None) -> float:
    """Area below the precision-recall polygon.

    Each positive adds the mean of the precision just before it and at it, over the number of
    positives; before rank 0 precision is 1. Never above the AP of `metrics`, which adds the second
    alone.

    Args:
        rank_P: ranks of the positives that were found, from 0.
        positives: how many there are; None where the whole index is ranked: all those found.

    Returns:
        0 to 1; NaN without positives.

    Raises:
        ValueError: more are found than there are.
    """
    rank_P, positives = _found(rank_P, positives)
    if not positives:
        return np.nan
    before_P = np.arange(len(rank_P))
    precision_before_P = np.where(rank_P > 0, before_P / np.maximum(rank_P, 1), 1.0)
    precision_at_P = (before_P + 1) / (rank_P + 1)
    return float((precision_before_P + precision_at_P).sum() / 2 / positives)


def precision_at(rank_P: np.ndarray, k: int, positives: int | None = None) -> float:
    """Precision of the first k, or of those down to the last positive where that comes sooner.

    So a query of 2 positives, both in front, has 1 at 10. Arguments, NaN and errors as in
    `average_precision_trapezoid`; 0 where none of the positives is ranked.
    """
    rank_P, positives = _found(rank_P, positives)
    if k < 1:
        raise ValueError(f"k is {k}; at least 1")
    if not len(rank_P):
        return 0.0 if positives else np.nan
    window = min(k, int(rank_P[-1]) + 1)
    return float((rank_P < window).sum() / window)


def map_at_1k(
    relevant_QK: np.ndarray, positives_Q: np.ndarray, similarity_QK: np.ndarray | None = None
) -> np.ndarray:
    """ILIAS's mAP@1k, one value a query: the sum of P(i) rel(i) for i <= 1000, over min(n, 1000).

    Its code writes that as scikit-learn's average precision of the first 1000, times those found
    over min(n, 1000); 0 where none is found. scikit-learn takes equal similarities as one step: each
    relevant image among them has the precision at their end. Without similarities the ranks count
    as they stand, as everywhere in this package.

    Args:
        relevant_QK: bool, is the image at this rank relevant. Beyond rank 1000 nothing counts.
        positives_Q: relevant images in the index.
        similarity_QK: falling along a row; given, ties count as in ILIAS.

    Returns:
        [Q]; NaN without positives.

    Raises:
        ValueError: shapes differ, or similarities rise along a row.
    """
    relevant_QK = np.asarray(relevant_QK, bool)[:, :ILIAS_DEPTH]
    end_QK = np.broadcast_to(np.arange(relevant_QK.shape[1]), relevant_QK.shape)
    if similarity_QK is not None:
        end_QK = _tie_ends(np.asarray(similarity_QK)[:, :ILIAS_DEPTH], relevant_QK.shape)
    hits_QK = np.take_along_axis(relevant_QK.cumsum(axis=1), end_QK, axis=1)
    return _share((hits_QK / (end_QK + 1) * relevant_QK).sum(axis=1), positives_Q)


def recall_at_1k(relevant_QK: np.ndarray, positives_Q: np.ndarray) -> np.ndarray:
    """Found in the first 1000, over min(n, 1000): `map_at_1k` of the same images in perfect order.

    ILIAS calls it the oracle and divides by n, which is the same up to 1000 positives. (Its code
    overrates a list of fewer than 1000 images, as it takes their share for that of 1000.) NaN
    without positives.
    """
    return _share(np.asarray(relevant_QK, bool)[:, :ILIAS_DEPTH].sum(axis=1), positives_Q)


def _found(rank_P: np.ndarray, positives: int | None) -> tuple[np.ndarray, int]:
    rank_P = np.sort(rank_P)
    if positives is not None and positives < len(rank_P):
        raise ValueError(f"{len(rank_P)} positives are ranked, of {positives}")
    return rank_P, len(rank_P) if positives is None else positives


def _tie_ends(similarity_QK: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """For each rank the last one of the same similarity."""
    if similarity_QK.shape != shape:
        raise ValueError(f"{list(similarity_QK.shape)} similarities for {list(shape)} ranks")
    if not (similarity_QK[:, 1:] <= similarity_QK[:, :-1]).all():
        raise ValueError("similarities must fall along the ranking")
    last = shape[1] - 1
    ends_QK = np.full(shape, last)
    goes_on_QK = similarity_QK[:, 1:] == similarity_QK[:, :-1]
    ends_QK[:, :-1] = np.where(goes_on_QK, last, np.arange(last))
    return np.minimum.accumulate(ends_QK[:, ::-1], axis=1)[:, ::-1]


def _share(total_Q: np.ndarray, positives_Q: np.ndarray) -> np.ndarray:
    counted_Q = np.minimum(positives_Q, ILIAS_DEPTH)
    nowhere_Q = np.full(len(total_Q), np.nan)
    return np.divide(total_Q, counted_Q, out=nowhere_Q, where=counted_Q > 0)
