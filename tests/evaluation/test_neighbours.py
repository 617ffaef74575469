"""Exact search against a full sort: ties, twins, rows left out; and its threads under a launcher."""

import faiss
import numpy as np
import pytest
from scored_tables import table_of

from guie.evaluation import knn
from guie.evaluation.knn import ExactIndex, first_equal_row, search_threads
from guie.evaluation.search import Images


def slow_search(queries_QD, index_ND, k, own_Q):
    found = []
    for q, query in enumerate(queries_QD.tolist()):
        ranking = [
            (-sum(a * b for a, b in zip(query, image, strict=True)), row)
            for row, image in enumerate(index_ND.tolist())
            if row != own_Q[q]
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
    own_Q = np.full(12, -1)
    own_Q[[0, 3, 11]] = 0, 17, 39
    found_QK, _ = ExactIndex(index_ND).search(queries_QD, k, own_Q)
    np.testing.assert_array_equal(found_QK, slow_search(queries_QD, index_ND, k, own_Q))


@pytest.mark.parametrize(("queries", "size"), [(3, 17), (1, 61), (37, 1001)])
def test_equal_vectors_tie_exactly(queries, size):
    # At 3 x 17 x 64, among others, a plain matrix product rounds the last columns differently.
    rng = np.random.default_rng(0)
    index_ND = np.repeat(rng.normal(size=(1, 64)), size, axis=0).astype(np.float32)
    queries_QD = rng.normal(size=(queries, 64)).astype(np.float32)
    found_QK, _ = ExactIndex(index_ND).search(queries_QD, 10)
    assert (found_QK == np.arange(10)).all()


@pytest.mark.parametrize("twins", [1, 7])
@pytest.mark.parametrize("k", [1, 10, 150])
def test_rows_and_similarities_are_those_of_the_full_product(k, twins):
    rng = np.random.default_rng(k)
    index_ND = np.repeat(rng.normal(size=(300, 16)), twins, axis=0).astype(np.float32)
    index_ND = index_ND[rng.permutation(len(index_ND))]
    queries_QD = index_ND[:40]
    own_Q = np.arange(40)
    rows_QK, scores_QK = ExactIndex(index_ND).search(queries_QD, k, own_Q)
    product_QN = queries_QD.astype(np.float64) @ index_ND.astype(np.float64).T
    product_QN[own_Q, own_Q] = -np.inf
    np.testing.assert_allclose(scores_QK, np.take_along_axis(product_QN, rows_QK, 1), atol=1e-5)
    np.testing.assert_allclose(scores_QK, -np.sort(-product_QN, axis=1)[:, :k], atol=1e-5)
    groups_N = first_equal_row(index_ND)
    same_QK = groups_N[rows_QK[:, 1:]] == groups_N[rows_QK[:, :-1]]
    assert (np.diff(rows_QK)[same_QK] > 0).all()  # twins follow each other by row


def test_ties_past_the_last_rank_are_searched_too():
    """A thousand different vectors of one similarity: the lowest rows win, not those retrieved first."""
    index_ND = np.zeros((1000, 1001), np.float32)
    index_ND[:, 0] = 1
    index_ND[np.arange(1000), 1 + np.random.default_rng(0).permutation(1000)] = 1
    query_QD = np.eye(1, 1001, dtype=np.float32)
    rows_QK, _ = ExactIndex(index_ND).search(np.repeat(query_QD, 30, axis=0), 3)
    assert (rows_QK == [0, 1, 2]).all()


def test_equal_rows_are_found_though_their_sums_collide(monkeypatch):
    index_ND = np.array([[1, 2], [2, 1], [1, 2], [2, 1], [-0.0, 0]], dtype=np.float32)
    assert first_equal_row(index_ND).tolist() == [0, 1, 0, 1, 4]

    class Same:
        def integers(self, high, size, dtype):
            return np.ones(size, dtype)

    monkeypatch.setattr(knn.np.random, "default_rng", lambda seed: Same())
    assert first_equal_row(index_ND).tolist() == [0, 1, 0, 1, 4]


@pytest.mark.parametrize("most", [1, 3])
def test_images_share_any_label_and_positives_are_of_the_union(most):
    rng = np.random.default_rng(0)
    sets = [rng.choice(list("abcdef"), rng.integers(1, most + 1)).tolist() for _ in range(50)]
    rows = [(str(n), "|".join(names), "both") for n, names in enumerate(sets)]  # also a|a
    images = Images.of(table_of(*rows))
    query_Q, index_N = np.arange(0, 30), np.arange(20, 50)
    shared_QN = [[bool(set(sets[q]) & set(sets[i])) for i in index_N] for q in query_Q]
    found_QN = np.broadcast_to(index_N, (30, 30))
    np.testing.assert_array_equal(images.are_relevant(query_Q, found_QN), shared_QN)
    counts_Q = np.sum(shared_QN, axis=1)
    np.testing.assert_array_equal(images.count_shared(query_Q, index_N), counts_Q)
    np.testing.assert_array_equal(
        images.count_positives(query_Q, index_N), counts_Q - (query_Q >= 20)
    )


@pytest.mark.parametrize(
    ("environment", "all_cores"),
    [
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, True),
        ({"OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "no"}, True),
        ({}, False),
        ({"OMP_NUM_THREADS": "1"}, False),
        ({"OMP_NUM_THREADS": "3", "TORCHELASTIC_RUN_ID": "x"}, False),
    ],
)
def test_a_launchers_one_thread_becomes_all_cores_and_is_restored_and_a_users_stays(
    environment, all_cores, monkeypatch
) -> None:
    for name in ("OMP_NUM_THREADS", *knn.LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(knn, "usable_cores", lambda: 6)
    threads = []
    monkeypatch.setattr(faiss, "omp_set_num_threads", threads.append)
    with search_threads(), search_threads(3):
        assert threads == [6] * all_cores, "the outermost decides"
    with pytest.raises(KeyError), search_threads(4):
        raise KeyError
    assert threads[:2] == [6, 1][: 2 * all_cores]
    if all_cores:
        assert threads == [6, 1, 1, 1]
