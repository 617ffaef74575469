"""Graded rankings against loops over lists; ILIAS's numbers against scikit-learn's, literally."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from guie.evaluation import metrics
from guie.evaluation.graded import (
    EASY,
    HARD,
    JUNK,
    NEGATIVE,
    average_precision_trapezoid,
    precision_at,
    revisited,
)
from guie.evaluation.ranking_files import map_at_1k

SETS = {"easy": ("e", "hj"), "medium": ("eh", "j"), "hard": ("h", "ej")}
GRADES = {"e": EASY, "h": HARD, "j": JUNK, "n": NEGATIVE}


def coded(*rankings):
    return np.array([[GRADES[letter] for letter in ranking] for ranking in rankings])


def random_rankings(queries=30, length=40, seed=0):
    rng = np.random.default_rng(seed)
    shares = [rng.dirichlet([1, 1, 1, 3]) for _ in range(queries)]
    return ["".join(rng.choice([*"ehjn"], size=length, p=p)) for p in shares]


def slow_revisited(ranking, protocol, depths):
    """One query's AP and precisions: junk is dropped from the list, then precisions are counted."""
    wanted, dropped = SETS[protocol]
    hits = [letter in wanted for letter in ranking if letter not in dropped]
    if not any(hits):
        return [float("nan")] * (1 + len(depths))
    area = 0.0
    for rank, hit in enumerate(hits):
        if hit:
            before = sum(hits[:rank]) / rank if rank else 1.0
            area += (before + sum(hits[: rank + 1]) / (rank + 1)) / 2
    values = [area / sum(hits)]
    last = max(rank for rank, hit in enumerate(hits, start=1) if hit)
    for k in depths:
        window = min(last, k)
        values.append(sum(hits[:window]) / window)
    return values


@pytest.mark.parametrize("protocol", SETS)
def test_protocols_equal_their_slow_twin(protocol):
    rankings = random_rankings()
    scores = revisited(coded(*rankings))
    keys = [f"{protocol}_{what}" for what in ("ap", "p_at_1", "p_at_5", "p_at_10")]
    slow = np.array([slow_revisited(ranking, protocol, (1, 5, 10)) for ranking in rankings])
    np.testing.assert_allclose(np.stack([scores[key] for key in keys], 1), slow, rtol=1e-12)


def test_trapezoids_by_hand():
    assert average_precision_trapezoid(np.array([0, 1, 2])) == 1.0
    # At rank 0: 1 and 1. At rank 2, after one positive: 1/2 before, 2/3 at it.
    assert average_precision_trapezoid(np.array([0, 2])) == pytest.approx(
        (1 + (1 / 2 + 2 / 3) / 2) / 2
    )
    assert average_precision_trapezoid(np.array([1])) == pytest.approx((0 + 1 / 2) / 2)


def test_precision_looks_no_deeper_than_the_last_positive():
    assert precision_at(np.array([0, 1]), 10) == 1.0
    assert precision_at(np.array([0, 3]), 10) == pytest.approx(2 / 4)
    assert precision_at(np.array([0, 3]), 3) == pytest.approx(1 / 3)
    assert precision_at(np.array([5]), 1) == 0.0


def slow_ilias(relevant, similarities, positives, k=1000):
    """ILIAS's AP and oracle as its code writes them."""
    y_true, y_score = relevant[:k], similarities[:k]
    if not y_true.any():
        return 0.0, 0.0
    ap = average_precision_score(y_true, y_score) * y_true.sum() / min(k, positives)
    return ap, y_true.mean() * k / positives


def long_rankings(levels, queries=12, length=1300, seed=0):
    """Few relevant images, mostly in front; similarities of so many different levels."""
    rng = np.random.default_rng(seed)
    relevant_QK = rng.random((queries, length)) < 0.3 / (1 + np.arange(length) / 20)
    relevant_QK[0] = False
    relevant_QK[1], relevant_QK[1, -1] = False, True  # found too late
    similarity_QK = -np.sort(-rng.integers(levels, size=(queries, length)) / levels, axis=1)
    positives_Q = relevant_QK.sum(axis=1) + rng.integers(1, 5, queries)
    return relevant_QK, similarity_QK, positives_Q


@pytest.mark.parametrize("levels", [1, 3, 50, 10**9])
def test_ilias_equals_its_code(levels):
    relevant_QK, similarity_QK, positives_Q = long_rankings(levels)
    rows = zip(relevant_QK, similarity_QK, positives_Q, strict=True)
    slow = np.array([slow_ilias(*row) for row in rows])
    fast_Q = map_at_1k(relevant_QK, positives_Q, similarity_QK)
    np.testing.assert_allclose(fast_Q, slow[:, 0], rtol=1e-12)
    found_Q = metrics.found_at(relevant_QK, positives_Q, 1000)
    np.testing.assert_allclose(found_Q, slow[:, 1], rtol=1e-12)
    if levels == 10**9:  # no ties: one after the other
        steps_Q = metrics.map_at(relevant_QK, positives_Q, 1000)
        np.testing.assert_allclose(steps_Q, slow[:, 0], rtol=1e-12)


def test_ilias_denominators():
    relevant_QK = np.ones((3, 1200), bool)
    falling_QK = np.broadcast_to(-np.arange(1200.0), relevant_QK.shape)
    positives_Q = np.array([1200, 5000, 1200])
    assert map_at_1k(relevant_QK, positives_Q, falling_QK).tolist() == [1.0] * 3
    few_QK = np.array([[True, False, True]])  # a short list misses what it does not hold
    found_Q = map_at_1k(few_QK, np.array([4]), falling_QK[:1, :3])
    assert found_Q == pytest.approx([(1 + 2 / 3) / 4])
