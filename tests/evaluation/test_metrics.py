"""Each metric against a slow twin straight from its definition."""

import numpy as np
import pytest

from guie.evaluation import metrics
from guie.evaluation.bootstrap import harmonic_headline

# Slow twins: `relevant` is the whole ranking of one query as a list, `n` its positives.


def slow_precision_sum(relevant, last):
    return sum(sum(relevant[:i]) / i for i in range(1, last + 1) if relevant[i - 1])


SLOW = {
    "r_at_1": lambda relevant, n: float(relevant[0]),
    "mmp_at_5": lambda relevant, n: sum(relevant[: min(n, 5)]) / min(n, 5),
    "map_at_100": lambda relevant, n: (
        slow_precision_sum(relevant, min(100, len(relevant))) / min(n, 100)
    ),
    "map_at_r": lambda relevant, n: slow_precision_sum(relevant, n) / n,
    "r_precision": lambda relevant, n: sum(relevant[:n]) / n,
    **{
        f"recall_at_{k}": lambda relevant, n, k=k: float(sum(relevant[:k]) > 0)
        for k in (2, 4, 8, 10, 20, 30, 40, 100)
    },
}


@pytest.mark.parametrize("length", [3, 60, 260])
def test_metrics_equal_their_slow_twins(length):
    """Shuffled full rankings, several for each number of positives."""
    positives = [n for n in (1, 2, 3, 4, 5, 6, 50, 99, 100, 101, 200) if n <= length] * 5
    rng = np.random.default_rng(0)
    relevant_QK = np.array([rng.permutation(np.arange(length) < n) for n in positives])
    found = metrics.ranking_metrics(relevant_QK, np.array(positives))
    assert list(found) == list(SLOW)
    for key, fast_Q in found.items():
        slow_Q = [SLOW[key](row.tolist(), n) for row, n in zip(relevant_QK, positives, strict=True)]
        np.testing.assert_allclose(fast_Q, slow_Q, rtol=1e-12, err_msg=key)


def test_harmonic_mean():
    with np.errstate(all="raise"):
        found = harmonic_headline(np.array([[0.5, 1.0], [0.9, 0.0]]))
    assert found == pytest.approx([2 / (1 / 0.5 + 1 / 1.0), 0.0])


def test_ranks_that_metrics_need():
    assert metrics.depth_of(["r_at_1", "mmp_at_5"], 400) == 5
    assert metrics.depth_of(["recall_at_1000", "map_at_100"], 400) == 1000
    assert metrics.depth_of(["map_at_r", "recall_at_8"], 400) == 400
    with pytest.raises(ValueError, match="'ndcg' is not a metric"):
        metrics.depth_of(["ndcg"], 1)
