"""Room, directions and pairs of spaces whose answers are known."""

import numpy as np
import pandas as pd
import pytest

from guie.evaluation import geometry

COUNT = 4000


def unit(rng, *shape):
    values = rng.standard_normal(shape).astype(np.float32)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def test_pairs_are_uniform_over_all_pairs_of_their_kind():
    labels = pd.Series(["a"] * 2 + ["b"] * 3 + ["alone"] + ["a"])  # 3 pairs in a, 3 in b
    pairs = geometry.draw_pairs(labels, 6000)
    names = labels.to_numpy()
    assert (pairs.one != pairs.other).all()
    assert ((names[pairs.one] == names[pairs.other]) == pairs.same).all()
    same = np.sort(np.stack([pairs.one, pairs.other])[:, pairs.same], axis=0)
    pairs_P, counts = np.unique(same, axis=1, return_counts=True)
    assert pairs_P.shape[1] == 6
    assert counts == pytest.approx(np.full(6, 1000), rel=0.12)
    assert pairs.same.sum() == (~pairs.same).sum() == 6000


@pytest.mark.parametrize("labels", [["a", "b", "c"], ["a", "a"], []])
def test_no_pairs_are_told(labels):
    with pytest.raises(ValueError, match="two classes"):
        geometry.draw_pairs(pd.Series(labels, dtype=object), 5)


def test_a_space_scaled_down_has_that_ratio():
    rng = np.random.default_rng(0)
    space = rng.standard_normal((60, 8)).astype(np.float32)
    pairs = geometry.draw_pairs(pd.Series(np.arange(60) // 3), COUNT)
    assert geometry.distance_ratios(space / 4, space, pairs) == pytest.approx(np.full(8000, 0.25))
    assert np.isnan(geometry.distance_ratios(space, np.zeros_like(space), pairs)).all()


def test_a_domain_in_a_corner_has_less_room():
    rng = np.random.default_rng(0)
    wide, corner = unit(rng, 400, 16), unit(rng, 400, 16) * 0.1
    corner[:, 0] += 1
    corner /= np.linalg.norm(corner, axis=1, keepdims=True)
    table = pd.DataFrame({
        "domain": ["wide"] * 400 + ["corner"] * 400 + ["single"],
        "label": [f"{n // 4}" for n in range(800)] + ["one"],
    })  # fmt: skip
    found = geometry.room(np.concatenate([wide, corner, wide[:1]]), table, COUNT)
    assert found["wide"] > 1 > 0.2 > found["corner"] > 0
    assert np.isnan(found["single"])


def test_directions_counts_dimensions():
    rng = np.random.default_rng(0)
    flat = np.zeros((5000, 32), np.float32)
    flat[:, :6] = unit(rng, 5000, 6)
    assert geometry.directions(flat) == pytest.approx(6, rel=0.02)
    assert geometry.spectrum(flat)[:7] == pytest.approx([1 / 6] * 6 + [0], abs=0.01)
    line = np.linspace(-1, 1, 9)[:, None] * unit(rng, 1, 32)
    assert geometry.directions(line) == pytest.approx(1)


def test_nearest_is_the_largest_cosine():
    rng = np.random.default_rng(0)
    few, many = unit(rng, 20, 8), unit(rng, 300, 8)
    assert geometry.nearest(few, many) == pytest.approx((few @ many.T).max(1), abs=1e-6)
