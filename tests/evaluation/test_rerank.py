"""Re-ranking against plain restatements of the papers' equations, one pair of images at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from guie.base.arguments import METHODS, methods_of
from guie.base.errors import UserError
from guie.evaluation.knn import ExactIndex
from guie.evaluation.rerank import (
    ALPHA,
    BETA,
    LISTED,
    MUTUAL,
    NEIGHBOURS,
    Find,
    NeighbourLists,
    Reranker,
    augmented_scores,
    csls,
    expanded_queries,
    inverted_softmax,
)

COUNT, K = 60, MUTUAL


def units(count: int, seed: int, dim: int = 5) -> np.ndarray:
    """Vectors around a few centres, so that some neighbours are mutual and others are not."""
    rng = np.random.default_rng(seed)
    vectors = np.random.default_rng(7).normal(size=(6, dim))[rng.integers(6, size=count)]
    vectors = vectors + 0.5 * rng.normal(size=(count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def index() -> np.ndarray:
    return units(COUNT, 0)


@pytest.fixture(scope="module")
def find(index: np.ndarray) -> Find:
    return ExactIndex(index).search


@pytest.fixture(scope="module")
def asked(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Four queries from outside, and four images of the index, whose own rows are hidden."""
    queries = np.concatenate([units(4, 1), index[[3, 8, 20, 41]]])
    return queries, np.array([-1, -1, -1, -1, 3, 8, 20, 41])


def plain_nearest(vector: np.ndarray, index: np.ndarray, left: list[int], k: int) -> list[int]:
    cosine = index @ vector
    return sorted((row for row in range(len(index)) if row not in left), key=lambda r: -cosine[r])[
        :k
    ]


def plain_mean(vector: np.ndarray, others: np.ndarray) -> np.ndarray:
    total = vector.astype(np.float64).copy()
    for other in others:
        total += max(float(vector @ other), 0.0) ** ALPHA * other
    return total / np.linalg.norm(total)


def test_lists_skip_the_query_s_own_image(index: np.ndarray, find: Find) -> None:
    lists = NeighbourLists(index, find)
    rows = np.array([[5, 9, -1], [5, 20, 0]])
    own = np.array([-1, lists_first(index, 5)])
    found, score = lists.without(rows, own, K)
    for b, c in ((0, 0), (0, 1), (1, 0), (1, 2)):
        expected = plain_nearest(index[rows[b, c]], index, [rows[b, c], own[b]], K)
        assert found[b, c].tolist() == expected
        np.testing.assert_allclose(score[b, c], index[expected] @ index[rows[b, c]], atol=1e-6)
    assert (found[0, 2] == -1).all() and np.isneginf(score[0, 2]).all()


def lists_first(index: np.ndarray, row: int) -> int:
    return plain_nearest(index[row], index, [row], 1)[0]


def test_lists_of_an_index_with_few_images() -> None:
    index = units(3, 0)
    lists = NeighbourLists(index, ExactIndex(index).search)
    found, score = lists.without(np.array([[0]]), np.array([1]), LISTED)
    assert found[0, 0].tolist() == [2] + [-1] * (LISTED - 1)
    assert np.isfinite(score[0, 0]).tolist() == [True] + [False] * (LISTED - 1)


def test_query_expansion_is_alpha_weighted_over_mutual_neighbours(
    index: np.ndarray, find: Find, asked: tuple[np.ndarray, np.ndarray]
) -> None:
    queries, owns = asked
    found = expanded_queries(queries, owns, NeighbourLists(index, find), find)
    sizes = set()
    for query, own, mean in zip(queries, owns, found, strict=True):
        mutual = []
        for row in plain_nearest(query, index, [own], K):
            # With the query in the index, and without its own image, which is the same vector
            others = [o for o in range(COUNT) if o not in (row, own)]
            nearer = sum(float(index[o] @ index[row]) > float(query @ index[row]) for o in others)
            if nearer < K:
                mutual.append(row)
        sizes.add(len(mutual))
        np.testing.assert_allclose(mean, plain_mean(query, index[mutual]), atol=1e-6)
    assert len(sizes) > 1, "the case must have neighbours that are not mutual"


def test_database_augmentation_leaves_the_query_s_own_image_out(
    index: np.ndarray, find: Find, asked: tuple[np.ndarray, np.ndarray]
) -> None:
    queries, owns = asked
    rows, _ = find(queries, 30, owns)
    found = augmented_scores(queries, rows, owns, NeighbourLists(index, find))
    for b, own in enumerate(owns):
        for c, row in enumerate(rows[b]):
            near = plain_nearest(index[row], index, [row, own], K)
            mutual = [o for o in near if row in plain_nearest(index[o], index, [o, own], K)]
            expected = plain_mean(index[row], index[mutual]) @ queries[b]
            assert found[b, c] == pytest.approx(expected, abs=1e-6)


def test_csls_is_its_equation(
    index: np.ndarray, find: Find, asked: tuple[np.ndarray, np.ndarray]
) -> None:
    queries, owns = asked
    rows, score = find(queries, 30, owns)
    found = csls(score, rows, owns, NeighbourLists(index, find))
    for b, own in enumerate(owns):
        r_query = np.mean(
            [index[o] @ queries[b] for o in plain_nearest(queries[b], index, [own], NEIGHBOURS)]
        )
        for c, row in enumerate(rows[b]):
            near = plain_nearest(index[row], index, [row, own], NEIGHBOURS)
            r_image = np.mean([index[o] @ index[row] for o in near])
            expected = 2 * float(index[row] @ queries[b]) - r_query - r_image
            assert found[b, c] == pytest.approx(expected, abs=1e-5)


def test_inverted_softmax_is_its_equation(
    index: np.ndarray, find: Find, asked: tuple[np.ndarray, np.ndarray]
) -> None:
    queries, owns = asked
    rows, score = find(queries, 30, owns)
    bank = np.arange(0, COUNT, 2)  # has the own images 8 and 20, not 3 and 41
    found = inverted_softmax(score, rows, owns, index, bank)
    for b, own in enumerate(owns):
        for c, row in enumerate(rows[b]):
            left = [n for n in bank if n not in (row, own)]
            total = sum(math.exp(BETA * float(index[n] @ index[row])) for n in left)
            expected = math.log(math.exp(BETA * float(queries[b] @ index[row])) / total)
            assert found[b, c] == pytest.approx(expected, abs=2e-4)


def test_a_hub_loses_its_place() -> None:
    """An image near to everything is nearest to a query; corrections put the right one first."""
    index, query = np.zeros((42, 43)), np.zeros((1, 43))
    index[0, 0] = 1  # the hub
    index[1, [0, 1, 2]] = 0.4, 0.6, math.sqrt(0.48)  # the right image
    index[2:, 0] = 0.9
    index[np.arange(2, 42), np.arange(3, 43)] = math.sqrt(0.19)
    query[0, [0, 1]] = 0.75, math.sqrt(1 - 0.75**2)
    index, query = index.astype(np.float32), query.astype(np.float32)
    find, nobody = ExactIndex(index).search, np.array([-1])
    assert find(query, 1, nobody)[0].tolist() == [[0]]
    for name in ("csls", "softmax"):
        rows, _ = Reranker(index, find, [name]).search(query, 3, nobody)
        assert rows[0, 0] == 1, name


@pytest.mark.parametrize("methods", [[], *([name] for name in METHODS), ["expand", "csls"]])
def test_an_own_image_changes_nothing(index: np.ndarray, methods: list[str]) -> None:
    """An image of the index finds what the same picture from outside finds in an index without it."""
    rows = np.array([3, 8, 20, 41])
    reranker = Reranker(index, ExactIndex(index).search, methods)
    found, score = reranker.search(index[rows], 10, rows)
    for place, row in enumerate(rows):
        kept = np.delete(np.arange(COUNT), row)
        without = Reranker(index[kept], ExactIndex(index[kept]).search, methods)
        expected, expected_score = without.search(index[[row]], 10, np.array([-1]))
        assert found[place].tolist() == kept[expected[0]].tolist()
        np.testing.assert_allclose(score[place], expected_score[0], atol=1e-5)


def test_blocks_and_ranks_past_the_end(index: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = Reranker(index, ExactIndex(index).search, ["csls"])
    queries, nobody = units(9, 2), np.full(9, -1)
    whole = reranker.search(queries, 100, nobody)
    monkeypatch.setattr("guie.evaluation.rerank.ENTRIES", 2 * LISTED * COUNT)
    parts = reranker.search(queries, 100, nobody)
    np.testing.assert_array_equal(whole[0], parts[0])
    assert whole[0].shape == (9, COUNT)
    rows, score = reranker.search(index[:9], 100, np.arange(9))
    assert (rows[:, -1] == -1).all() and np.isneginf(score[:, -1]).all()
    assert MUTUAL < NEIGHBOURS < LISTED


def test_methods_by_name() -> None:
    assert methods_of(["csls", "expand", "csls"]) == ("expand", "csls")
    with pytest.raises(UserError, match="--rerank hubs: unknown; known: expand, augment, csls"):
        methods_of(["hubs"])
    with pytest.raises(UserError, match="csls and softmax both correct hubs; choose one"):
        methods_of(["softmax", "csls"])
