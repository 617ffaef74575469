"""Re-ranking against plain restatements of the papers' equations, one pair of images at a time."""

import math

import numpy as np
import pytest

from guie.base.arguments import METHODS, methods_of
from guie.base.errors import UserError
from guie.evaluation.knn import ExactIndex
from guie.evaluation.rerank import (
    LISTED,
    NeighbourLists,
    Reranker,
    augmented_scores,
    csls,
    expanded_queries,
    inverted_softmax,
)

COUNT = 60
ALPHA, BETA, K, NEIGHBOURS = 3.0, 10.0, 5, 10  # of the methods; CSLS has its paper's


def units(count: int, seed: int, dim: int = 5) -> np.ndarray:
    """Vectors around a few centres, so that some neighbours are mutual and others are not."""
    rng = np.random.default_rng(seed)
    vectors = np.random.default_rng(7).normal(size=(6, dim))[rng.integers(6, size=count)]
    vectors = vectors + 0.5 * rng.normal(size=(count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


INDEX = units(COUNT, 0)
FIND = ExactIndex(INDEX).search
# Four queries from outside, and four images of the index, whose own rows are hidden.
QUERIES = np.concatenate([units(4, 1), INDEX[[3, 8, 20, 41]]])
OWN = np.array([-1, -1, -1, -1, 3, 8, 20, 41])


def plain_nearest(vector: np.ndarray, left: list[int], k: int) -> list[int]:
    """The nearest rows of the index, without some."""
    rows = [row for row in range(COUNT) if row not in left]
    return sorted(rows, key=lambda row: -float(INDEX[row] @ vector))[:k]


def plain_mean(vector: np.ndarray, others: np.ndarray) -> np.ndarray:
    total = vector.astype(np.float64).copy()
    for other in others:
        total += max(float(vector @ other), 0.0) ** ALPHA * other
    return total / np.linalg.norm(total)


def test_query_expansion_is_alpha_weighted_over_mutual_neighbours() -> None:
    found = expanded_queries(QUERIES, OWN, NeighbourLists(INDEX, FIND), FIND)
    sizes = set()
    for query, own, mean in zip(QUERIES, OWN, found, strict=True):
        mutual = []
        for row in plain_nearest(query, [own], K):
            # With the query in the index, and without its own image, which is the same vector
            others = [o for o in range(COUNT) if o not in (row, own)]
            nearer = sum(float(INDEX[o] @ INDEX[row]) > float(query @ INDEX[row]) for o in others)
            if nearer < K:
                mutual.append(row)
        sizes.add(len(mutual))
        np.testing.assert_allclose(mean, plain_mean(query, INDEX[mutual]), atol=1e-6)
    assert len(sizes) > 1, "the case must have neighbours that are not mutual"


def test_database_augmentation_leaves_the_query_s_own_image_out() -> None:
    rows, _ = FIND(QUERIES, 30, OWN)
    found = augmented_scores(QUERIES, rows, OWN, NeighbourLists(INDEX, FIND))
    for b, own in enumerate(OWN):
        for c, row in enumerate(rows[b]):
            near = plain_nearest(INDEX[row], [row, own], K)
            mutual = [o for o in near if row in plain_nearest(INDEX[o], [o, own], K)]
            expected = plain_mean(INDEX[row], INDEX[mutual]) @ QUERIES[b]
            assert found[b, c] == pytest.approx(expected, abs=1e-6)


def test_csls_is_its_equation() -> None:
    rows, score = FIND(QUERIES, 30, OWN)
    found = csls(score, rows, OWN, NeighbourLists(INDEX, FIND))
    for b, own in enumerate(OWN):
        r_query = np.mean(
            [INDEX[o] @ QUERIES[b] for o in plain_nearest(QUERIES[b], [own], NEIGHBOURS)]
        )
        for c, row in enumerate(rows[b]):
            near = plain_nearest(INDEX[row], [row, own], NEIGHBOURS)
            r_image = np.mean([INDEX[o] @ INDEX[row] for o in near])
            expected = 2 * float(INDEX[row] @ QUERIES[b]) - r_query - r_image
            assert found[b, c] == pytest.approx(expected, abs=1e-5)


def test_inverted_softmax_is_its_equation() -> None:
    rows, score = FIND(QUERIES, 30, OWN)
    bank = np.arange(0, COUNT, 2)  # has the own images 8 and 20, not 3 and 41
    found = inverted_softmax(score, rows, OWN, INDEX, bank)
    for b, own in enumerate(OWN):
        for c, row in enumerate(rows[b]):
            left = [n for n in bank if n not in (row, own)]
            total = sum(math.exp(BETA * float(INDEX[n] @ INDEX[row])) for n in left)
            expected = math.log(math.exp(BETA * float(QUERIES[b] @ INDEX[row])) / total)
            assert found[b, c] == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("methods", [[], *([name] for name in METHODS), ["expand", "csls"]])
def test_an_own_image_changes_nothing(methods: list[str]) -> None:
    """An image of the index finds what the same picture from outside finds in an index without it."""
    rows = np.array([3, 8, 20, 41])
    reranker = Reranker(INDEX, ExactIndex(INDEX).search, methods)
    found, score = reranker.search(INDEX[rows], 10, rows)
    for place, row in enumerate(rows):
        kept = np.delete(np.arange(COUNT), row)
        without = Reranker(INDEX[kept], ExactIndex(INDEX[kept]).search, methods)
        expected, expected_score = without.search(INDEX[[row]], 10, np.array([-1]))
        assert found[place].tolist() == kept[expected[0]].tolist()
        np.testing.assert_allclose(score[place], expected_score[0], atol=1e-5)


def test_blocks_and_ranks_past_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = Reranker(INDEX, ExactIndex(INDEX).search, ["csls"])
    queries, nobody = units(9, 2), np.full(9, -1)
    whole = reranker.search(queries, 100, nobody)
    monkeypatch.setattr("guie.evaluation.rerank.ENTRIES", 2 * LISTED * COUNT)
    parts = reranker.search(queries, 100, nobody)
    np.testing.assert_array_equal(whole[0], parts[0])
    assert whole[0].shape == (9, COUNT)
    rows, score = reranker.search(INDEX[:9], 100, np.arange(9))
    assert (rows[:, -1] == -1).all() and np.isneginf(score[:, -1]).all()
    assert LISTED > NEIGHBOURS, "a query's own image is left out"


def test_methods_by_name() -> None:
    assert methods_of(["csls", "expand", "csls"]) == ("expand", "csls")
    for wrong, fault in (
        (["hubs"], "--rerank hubs: unknown; known: expand, augment, csls"),
        (["softmax", "csls"], "csls and softmax both correct hubs; choose one"),
    ):
        with pytest.raises(UserError, match=fault):
            methods_of(wrong)
