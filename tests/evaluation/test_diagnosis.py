"""Where an embedding is wrong: by hand on a circle, and against the protocols' own scores."""

import numpy as np
import pandas as pd
import pytest
from scored_tables import gaussian_embeddings, mixed_table, table_of

from guie.evaluation import diagnosis, geometry
from guie.evaluation.diagnosis import (
    Nearest,
    by_class,
    class_confusions,
    domain_shares,
    gaps,
    hubness,
    nearest,
    occurrences,
    strayed,
    wrong_firsts,
)
from guie.evaluation.files import as_units
from guie.evaluation.protocols.base import Part
from guie.evaluation.protocols.evaluating import score_part

MERGED = Part("merged", "merged", ("r_at_1",))
# Images on a circle: degrees, class. Two classes of a, one of b; 3 and 4 are close to each other.
CIRCLE = [(0, "a/1"), (10, "a/1"), (13, "a/2"), (60, "a/2"), (64, "b/1"), (90, "b/1"), (93, "b/1")]
TABLE = table_of(*((f"{i}.jpg", label, "both") for i, (_, label) in enumerate(CIRCLE)))


def on_circle(degrees) -> np.ndarray:
    radians = np.deg2rad(np.asarray(degrees, np.float64))
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def chord(degrees: float) -> float:
    return 2 * np.sin(np.deg2rad(degrees) / 2)


UNIT_TD = on_circle([degrees for degrees, _ in CIRCLE])


@pytest.fixture(scope="module")
def near() -> Nearest:
    return nearest(MERGED, TABLE, UNIT_TD)


def test_neighbours_on_a_circle(near):
    assert near.query_Q.tolist() == list(range(7))
    assert near.found_QK[:, 0].tolist() == [1, 2, 1, 4, 3, 6, 5]
    assert near.first_hit_Q.tolist() == [1, 2, 3, 4, 2, 1, 1]
    assert near.positives_Q.tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert near.distance_QK[3, 0] == pytest.approx(chord(4), abs=1e-3)
    assert (near.found_QK[:, 6:] == -1).all() and np.isinf(near.distance_QK[:, 6:]).all()
    with pytest.raises(ValueError, match="no query has a positive"):
        nearest(MERGED, TABLE.assign(label=TABLE["image_path"]), UNIT_TD)


def test_confusions_of_domains_and_classes(near):
    shares = domain_shares(near, TABLE)
    assert shares.to_dict("index") == {
        "a": {"a": 0.75, "b": 0.25},
        "b": pytest.approx({"a": 1 / 3, "b": 2 / 3}),
    }
    stray = strayed(near, TABLE)
    assert sorted(zip(stray["query"], stray["answer"], stray["place"], strict=True)) == [
        ("a", "b", 3),
        ("b", "a", 4),
    ]
    pairs = class_confusions(near, TABLE).set_index(["query", "answer"])
    assert pairs["queries"].tolist() == [1, 1, 1, 1]
    assert pairs["share"].to_dict() == pytest.approx(
        {("a/1", "a/2"): 0.5, ("a/2", "a/1"): 0.5, ("a/2", "b/1"): 0.5, ("b/1", "a/2"): 1 / 3}
    )
    assert pairs.index[-1] == ("b/1", "a/2")  # as often, of a larger class
    classes = by_class(near, TABLE).set_index("label")
    assert list(classes.index) == ["a/2", "a/1", "b/1"], "the hardest first"
    assert classes["r_at_1"].tolist() == pytest.approx([0, 0.5, 2 / 3])
    assert classes["rank"].tolist() == [3.5, 1.5, 1]
    assert classes["queries"].tolist() == [2, 2, 3]
    assert classes["taken_for"].tolist() == ["a/1", "a/2", "a/2"]
    assert classes["times"].tolist() == [1, 1, 1]


def test_gaps_on_a_circle(near):
    found = gaps(MERGED, TABLE, UNIT_TD, near)
    of = {row: place for place, row in enumerate(found.query_S)}
    assert sorted(of) == list(range(7))
    for row, right, wrong in ((0, 10, 13), (3, 47, 4), (4, 26, 4)):
        assert found.positive_S[of[row]] == pytest.approx(chord(right), abs=1e-3)
        assert found.negative_S[of[row]] == pytest.approx(chord(wrong), abs=1e-3)
    assert found.any_positive_S[of[0]] == found.positive_S[of[0]]  # it has one
    assert (found.any_positive_S >= found.positive_S).all()
    assert (found.any_negative_S >= found.negative_S).all()


def test_hubs_by_hand():
    """Image 3 is found by all four queries, and wrongly first by three; 0 and 1 by none."""
    near = Nearest(
        query_Q=np.arange(4),
        found_QK=np.array([[3, 2], [3, -1], [3, -1], [2, 3]]),
        distance_QK=np.ones((4, 2)),
        relevant_QK=np.zeros((4, 2), bool),
        first_hit_Q=np.array([0, 2, 0, 1]),
        positives_Q=np.ones(4, int),
        index_I=np.arange(4),
        queries=4,
        sampled=False,
    )
    assert occurrences(near).tolist() == [0, 0, 2, 4]
    rows = hubness(near, pd.DataFrame({"domain": list("aabb")}))
    assert rows.loc["", ["images", "never", "most"]].tolist() == [4, 0.5, 4]
    assert rows.loc["", "held"] == pytest.approx(4 / 6)
    assert rows.loc["a", "never"] == 1 and np.isnan(rows.loc["a", "held"])
    assert rows.loc["", "skew"] == pytest.approx(2.25 / 2.75**1.5)
    assert rows.loc["b", "skew"] == 0 and np.isnan(rows.loc["a", "skew"])
    assert wrong_firsts(near).to_dict("list") == {"row": [3], "wrong": [3], "found": [4]}


@pytest.mark.parametrize("index", ["merged", "separate", "fused"])
def test_neighbours_are_those_of_the_score(index):
    table, part = mixed_table(), Part(index, index, ("r_at_1", "recall_at_10"))
    embeddings_TD = gaussian_embeddings(len(table))
    turned = {name: np.roll(embeddings_TD, 1, axis=1) for name in set(table["domain"])}
    for embedded in (embeddings_TD, turned):
        report, _ = score_part(part, embedded, table)
        near = nearest(part, table, as_units(embedded, table))
        domain_Q = table["domain"].to_numpy()[near.query_Q]
        for name, scores in report["domains"].items():
            own_Q = domain_Q == name
            assert own_Q.sum() == scores["queries"] - scores["queries_without_positive"]
            assert near.right_Q[own_Q].mean() == pytest.approx(scores["r_at_1"])
            assert near.recall_at(10)[own_Q].mean() == pytest.approx(scores["recall_at_10"])


def test_a_long_search_takes_a_sample(monkeypatch):
    """A page costs minutes whatever its index, and every model gets the same queries."""
    table = mixed_table()
    unit_TD = as_units(gaussian_embeddings(len(table)), table)
    whole = nearest(MERGED, table, unit_TD)
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 3_000)
    some, other = (nearest(MERGED, table, unit_TD[:, :dims]) for dims in (16, 5))
    assert some.sampled and not whole.sampled and some.queries == whole.queries
    assert 10 < len(some.query_Q) < len(whole.query_Q) / 2
    assert some.query_Q.tolist() == other.query_Q.tolist()
    places = np.searchsorted(whole.query_Q, some.query_Q)
    assert (whole.found_QK[places] == some.found_QK).all()
    assert set(gaps(MERGED, table, unit_TD, some).query_S) <= set(some.query_Q)


def test_pairs_are_uniform_over_all_pairs_of_their_kind():
    labels = pd.Series(["a"] * 2 + ["b"] * 3 + ["alone"] + ["a"])  # 3 pairs in a, 3 in b
    pairs = geometry.draw_pairs(labels, 6000)
    names = labels.to_numpy()
    assert (pairs.one != pairs.other).all()
    assert ((names[pairs.one] == names[pairs.other]) == pairs.same).all()
    same = np.sort(np.stack([pairs.one, pairs.other])[:, pairs.same], axis=0)
    pairs_P, counts = np.unique(same, axis=1, return_counts=True)
    assert pairs_P.shape[1] == 6 and counts == pytest.approx(np.full(6, 1000), rel=0.12)
    assert pairs.same.sum() == (~pairs.same).sum() == 6000
    for none in (["a", "b", "c"], ["a", "a"]):
        with pytest.raises(ValueError, match="two classes"):
            geometry.draw_pairs(pd.Series(none), 5)


def test_distances_and_variances_of_a_space():
    rng = np.random.default_rng(0)
    space = np.zeros((5000, 32), np.float32)
    space[:, :6] = rng.standard_normal((5000, 6))
    space /= np.linalg.norm(space, axis=1, keepdims=True)
    assert geometry.spectrum(space)[:7] == pytest.approx([1 / 6] * 6 + [0], abs=0.01)
    pairs = geometry.draw_pairs(pd.Series(np.arange(5000) // 3), 40)
    assert geometry.distance_ratios(space / 4, space, pairs) == pytest.approx(np.full(80, 0.25))
    assert np.isnan(geometry.distance_ratios(space, np.zeros_like(space), pairs)).all()
