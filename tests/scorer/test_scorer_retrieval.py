"""The search and the metric against slow twins written from the definitions, and corner cases."""

import math

import numpy as np
import pandas as pd
import pytest

from scorer.report import summarise
from scorer.retrieval import is_public, judge, nearest, own_rows


def frame(labels, paths, domain="d"):
    return pd.DataFrame({"image_path": paths, "label": labels, "domain": domain})


def slow_neighbours(query, query_path, index_emb, index_paths):
    """Sort all other images by distance, then by row."""
    others = [i for i, path in enumerate(index_paths) if path != query_path]
    return sorted(others, key=lambda i: (math.dist(query, index_emb[i]), i))


def slow_mmp_at_5(query_label, query_path, ranked, index_labels, index_paths):
    def relevant(i):
        return bool(set(query_label.split("|")) & set(index_labels[i].split("|")))

    n = sum(relevant(i) for i in range(len(index_labels)) if index_paths[i] != query_path)
    if n == 0:
        return math.nan
    return sum(relevant(i) for i in ranked[: min(n, 5)]) / min(n, 5)


def score(query_emb, queries, index_emb, index):
    rows, distances = nearest(
        np.float32(query_emb), np.float32(index_emb), own_rows(queries, index)
    )
    judged, relevant = judge(queries, index, rows)
    return judged, rows, distances, relevant


@pytest.mark.parametrize(("seed", "origin"), [(0, 0), (1, 0), (2, 0), (3, 2**23), (4, 2**23)])
def test_search_and_metric_equal_their_slow_twins(seed, origin, monkeypatch):
    """Far from the origin, the product of two vectors is rounded more than near neighbours differ."""
    monkeypatch.setattr("scorer.retrieval.BLOCK_NUMBERS", 300)  # several blocks, the last partial
    rng = np.random.default_rng(seed)
    emb = np.float32(origin + rng.integers(0, 3, (60, 4)))  # a coarse grid: ties and duplicates
    labels = ["|".join(rng.choice(list("abcdefgh"), rng.integers(1, 3), False)) for _ in emb]
    labels[7] = "alone"
    paths = [f"{i}.jpg" for i in range(60)]
    is_index = rng.random(60) < 0.7
    queries = frame(labels, paths)
    index = queries[is_index].reset_index(drop=True)
    judged, rows, distances, _ = score(emb, queries, emb[is_index], index)
    for i, (path, label) in enumerate(zip(paths, labels, strict=True)):
        ranked = slow_neighbours(emb[i], path, emb[is_index], list(index["image_path"]))
        assert list(rows[i]) == ranked[:5]
        expected = [math.dist(emb[i], emb[is_index][row]) for row in ranked[:5]]
        assert distances[i] == pytest.approx(expected)
        slow = slow_mmp_at_5(label, path, ranked, index["label"], index["image_path"])
        assert judged["mmp_at_5"][i] == pytest.approx(slow, nan_ok=True)
    assert np.isnan(judged["mmp_at_5"][7]) and np.isnan(judged["r_at_1"][7])


def test_an_index_smaller_than_five():
    images = frame(["a", "a", "b"], ["1", "2", "3"])
    judged, rows, distances, relevant = score([[0], [1], [3]], images, [[0], [1], [3]], images)
    assert rows.tolist() == [[1, 2, -1, -1, -1], [0, 2, -1, -1, -1], [1, 0, -1, -1, -1]]
    assert np.isinf(distances[:, 2:]).all() and not relevant[:, 2:].any()
    assert list(judged["mmp_at_5"][:2]) == [1, 1]


def test_mean_is_over_domains_and_pooled_over_queries_with_a_positive():
    domains = ["big"] * 4 + ["small", "none"]
    queries = frame(list("aaaxby"), list("123456")).assign(domain=domains)
    # The index holds a at 0 and b at 10: the three of "big" find a, the one of "small" finds a too.
    index = frame(["a", "b"], ["8", "9"])
    summary = summarise(score([[i] for i in range(6)], queries, [[0], [10]], index)[0])
    one, zero, none = ({"mmp_at_5": value, "r_at_1": value} for value in (1, 0, None))
    assert summary["domains"] == {
        "big": one | {"queries": 4, "queries_without_positive": 1},
        "small": zero | {"queries": 1, "queries_without_positive": 0},
        "none": none | {"queries": 1, "queries_without_positive": 1},
    }
    assert summary["mean"] == {"mmp_at_5": 0.5, "r_at_1": 0.5}
    assert summary["pooled"] == {"mmp_at_5": 0.75, "r_at_1": 0.75}


def test_the_public_split_never_moves():
    # Recorded values: a change of the hash would make old scores incomparable.
    assert [i for i in range(20) if is_public(f"images/{i}.jpg")] == [1, 6, 7, 14, 15, 18, 19]
    share = np.mean([is_public(f"{i}.jpg") for i in range(20000)])
    assert share == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
def test_rows_a_rounding_error_apart_are_in_order(scale):
    rng = np.random.default_rng(0)
    emb = np.repeat(rng.standard_normal((8, 16)), 40, axis=0).astype(np.float32)
    emb[:, 3] += np.tile(np.float32([0, 1e-7, -1e-7, 3e-7]), 80)
    emb = (emb[rng.permutation(len(emb))] * np.float32(scale)).astype(np.float32)
    paths = [f"{i}.jpg" for i in range(len(emb))]
    own = np.arange(0, len(emb), 7)
    rows, _ = nearest(emb[own], emb, own)
    for i, row in enumerate(own):
        exact = [float(x) for x in emb[row] / scale], emb.astype(np.float64) / scale
        assert list(rows[i]) == slow_neighbours(exact[0], paths[row], exact[1], paths)[:5]
