"""Each metric against a slow twin straight from its definition; the search against a full sort."""

import numpy as np
import pandas as pd
import pytest

from guie.evaluation import metrics
from guie.evaluation.metrics import ExactIndex, LabelSets

# Slow twins: `relevant` is the whole ranking of one query as a list, `n` its positives.


def precision(relevant, i):
    return sum(relevant[:i]) / i


def slow_recall(relevant, k):
    for hit in relevant[:k]:
        if hit:
            return 1.0
    return 0.0


def slow_mmp_at_5(relevant, n):
    window = n if n < 5 else 5
    return sum(relevant[:window]) / window


def slow_map_at_100(relevant, n):
    total = 0.0
    for i in range(1, min(100, len(relevant)) + 1):
        if relevant[i - 1]:
            total += precision(relevant, i)
    return total / min(n, 100)


def slow_r_precision(relevant, n):
    return sum(relevant[:n]) / n


def slow_map_at_r(relevant, n):
    total = 0.0
    for i in range(1, n + 1):
        if relevant[i - 1]:
            total += precision(relevant, i)
    return total / n


SLOW = {
    "r_at_1": lambda relevant, n: float(relevant[0]),
    "mmp_at_5": slow_mmp_at_5,
    "map_at_100": slow_map_at_100,
    "map_at_r": slow_map_at_r,
    "r_precision": slow_r_precision,
    **{
        f"recall_at_{k}": lambda relevant, n, k=k: slow_recall(relevant, k)
        for k in (2, 4, 8, 10, 20, 30, 40, 100)
    },
}


def rankings(length, positives, seed=0):
    """Shuffled full rankings, one for each number of positives."""
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.arange(length) < n) for n in positives]
    return np.array(rows), np.array(positives)


@pytest.mark.parametrize("length", [3, 60, 260])
@pytest.mark.parametrize("key", SLOW)
def test_metric_equals_its_slow_twin(key, length):
    positives = [n for n in (1, 2, 3, 4, 5, 6, 50, 99, 100, 101, 200) if n <= length] * 5
    relevant_QK, positives_Q = rankings(length, positives)
    fast_Q = metrics.ranking_metrics(relevant_QK, positives_Q)[key]
    slow_Q = [SLOW[key](row.tolist(), n) for row, n in zip(relevant_QK, positives, strict=True)]
    np.testing.assert_allclose(fast_Q, slow_Q, rtol=1e-12)


def test_every_key_has_a_twin():
    assert list(metrics.ranking_metrics(*rankings(10, [2]))) == list(SLOW)


def test_a_perfect_ranking_scores_exactly_one_on_every_metric():
    positives_Q = np.arange(1, 300)
    relevant_QK = np.arange(320) < positives_Q[:, None]
    for key, values_Q in metrics.ranking_metrics(relevant_QK, positives_Q).items():
        assert (values_Q == 1.0).all(), key


@pytest.mark.parametrize(
    ("relevant", "n", "expected"),
    [
        # One positive at rank 2: the challenge looks at one place only.
        ([0, 1, 0, 0, 0, 0], 1, {"mmp_at_5": 0, "map_at_100": 1 / 2, "recall_at_2": 1}),
        ([1, 0, 1, 0, 1, 1], 4, {"mmp_at_5": 2 / 4, "r_precision": 2 / 4}),
        ([1, 0, 1, 0, 1, 1], 4, {"map_at_r": (1 + 2 / 3) / 4}),
        ([1, 0, 1, 0, 1, 1], 4, {"map_at_100": (1 + 2 / 3 + 3 / 5 + 4 / 6) / 4}),
        ([0, 1, 1, 1, 1, 1], 9, {"mmp_at_5": 4 / 5, "r_at_1": 0}),
    ],
)
def test_metric_by_hand(relevant, n, expected):
    found = metrics.ranking_metrics(np.array([relevant], dtype=bool), np.array([n]))
    assert {key: found[key][0] for key in expected} == pytest.approx(expected)


def test_a_query_without_positives_has_no_metric():
    with pytest.raises(ValueError, match="without positives"):
        metrics.ranking_metrics(np.zeros((2, 5), dtype=bool), np.array([1, 0]))


def test_harmonic_mean():
    assert metrics.harmonic_mean([0.5, 1.0]) == pytest.approx(2 / (1 / 0.5 + 1 / 1.0))
    assert metrics.harmonic_mean([1.0] * 7) == 1.0
    with np.errstate(all="raise"):
        assert metrics.harmonic_mean([0.9, 0.0]) == 0.0


def hide(pairs):
    return tuple(np.array(pairs, dtype=np.int64).reshape(-1, 2).T)


def slow_search(queries_QD, index_ND, k, pairs):
    found = []
    for q, query in enumerate(queries_QD.tolist()):
        ranking = [
            (-sum(a * b for a, b in zip(query, image, strict=True)), row)
            for row, image in enumerate(index_ND.tolist())
            if (q, row) not in pairs
        ]
        rows = [row for _, row in sorted(ranking)][:k]
        found.append(rows + [-1] * (min(k, len(index_ND)) - len(rows)))
    return np.array(found)


@pytest.mark.parametrize("k", [1, 2, 5, 39, 40, 100])
def test_search_equals_a_full_sort_with_many_ties(k):
    rng = np.random.default_rng(k)
    # Small integers: their products are exact in float32, so ties are ties in both.
    queries_QD = rng.integers(-1, 2, (12, 6)).astype(np.float32)
    index_ND = rng.integers(-1, 2, (40, 6)).astype(np.float32)
    pairs = [(0, 0), (3, 17), (3, 18), (11, 39)]
    found_QK = ExactIndex(index_ND).search(queries_QD, k, hide(pairs))
    np.testing.assert_array_equal(found_QK, slow_search(queries_QD, index_ND, k, pairs))


def test_search_hides_rows_before_ranking_and_pads_with_minus_one():
    index_ND = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    found_QK = ExactIndex(index_ND).search(index_ND[:1], 9, hide([(0, 0)]))
    assert found_QK.tolist() == [[1, 2, -1]]


@pytest.mark.parametrize("size", [17, 61, 1001])
@pytest.mark.parametrize("queries", [1, 2, 3, 37])
def test_equal_vectors_tie_exactly_wherever_they_stand(size, queries):
    # At 3 x 17 x 64, among others, a plain matrix product rounds the last columns differently.
    rng = np.random.default_rng(0)
    index_ND = np.repeat(rng.normal(size=(1, 64)), size, axis=0).astype(np.float32)
    queries_QD = rng.normal(size=(queries, 64)).astype(np.float32)
    found_QK = ExactIndex(index_ND).search(queries_QD, 10, hide([]))
    assert (found_QK == np.arange(10)).all()


def test_label_sets_share_any_label_and_count_the_union():
    rng = np.random.default_rng(0)
    sets = [rng.choice(list("abcdef"), rng.integers(1, 4)).tolist() for _ in range(50)]
    labels = LabelSets(pd.Series(["|".join(names) for names in sets]))  # repeats such as a|a too
    query_Q, index_N = np.arange(0, 30), np.arange(20, 50)
    shared_QN = [[bool(set(sets[q]) & set(sets[i])) for i in index_N] for q in query_Q]
    found_QN = np.broadcast_to(index_N, (30, 30))
    np.testing.assert_array_equal(labels.shared(query_Q, found_QN), shared_QN)
    np.testing.assert_array_equal(labels.count_shared(query_Q, index_N), np.sum(shared_QN, axis=1))
