"""Limits on the difference of copies come from each domain's images and look-alikes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from guie.config.data import NearConfig
from guie.curation.duplicates.limits import (
    ALIKE,
    APART,
    CROSS,
    UNLIKE,
    Grade,
    fit_tail,
    graded,
    limits,
)


def thinning(count: int, exponent: float, seed: int = 0) -> np.ndarray:
    """Differences of look-alikes below APART, by a power law."""
    return APART * np.random.default_rng(seed).random(count) ** (1 / exponent)


@pytest.mark.parametrize(("count", "exponent"), [(100, 3.0), (2000, 4.0), (20_000, 8.0)])
def test_a_tail_predicts_the_look_alikes_below_its_window(count, exponent):
    """On the safe side: of many draws, nearly all expect at least the true average."""
    reach, below = 0.9, 0.5
    true = count * (below / APART) ** exponent
    found = [fit_tail(thinning(count, exponent, seed), reach).below(below) for seed in range(200)]
    assert np.mean(np.array(found) >= true) > 0.75
    assert np.median(found) < 5 * true + 1


def test_copies_do_not_count_among_the_look_alikes_however_many():
    look_alikes = thinning(500, 4.0)
    look_alikes = look_alikes[look_alikes > 0.6]
    copies = np.random.default_rng(1).uniform(0, 0.5, 5000)
    alone, together = (fit_tail(d, 0.6) for d in (look_alikes, np.r_[look_alikes, copies]))
    assert alone == together


def test_too_few_or_flat_look_alikes_have_a_tail():
    tail = fit_tail(np.array([0.1, 1.5]), 0.5, pooled=5.0)
    assert tail.exponent == 5.0 and tail.total > 1
    assert fit_tail(np.empty(0), 0.5).below(0.5) > 0
    assert fit_tail(np.full(50, 0.51), 0.5).limit(1.0, 0.5) <= 0.5
    assert fit_tail(np.full(50, 2.0), 0.5).limit(0.01, 0.5) == 0.5


def pairs_of(domain: str, differences: np.ndarray, labels: str = UNLIKE) -> pd.DataFrame:
    return pd.DataFrame({"domain": domain, "labels": labels, "difference": differences})


def test_limits_keep_the_expected_share_of_false_finds():
    altered = {name: np.linspace(0, 0.4, 100) for name in ("dense", "sparse")}
    images = pd.Series({"dense": 1000, "sparse": 1000})
    pairs = pd.concat(
        [
            pairs_of("dense", thinning(20_000, 2.0)),
            pairs_of("sparse", np.array([0.1, 0.2, 1.9])),
            pairs_of("sparse", np.array([0.3]), ALIKE),
            pairs_of(CROSS, np.array([1.2, 1.4])),
        ]
    )
    config = NearConfig(false_sure=0.01, false_copies=0.1)
    found = limits(pairs, images, altered, config).set_index(["domain", "labels"])
    dense, sparse = found.loc[("dense", UNLIKE)], found.loc[("sparse", UNLIKE)]
    assert dense["sure_limit"] < dense["copy_limit"] < dense["reach"] == sparse["reach"]
    assert dense["false_sure"] == pytest.approx(10) and dense["false_copies"] == pytest.approx(100)
    assert dense["recall_sure"] == np.mean(altered["dense"] <= dense["sure_limit"]) < 0.5
    assert dense["recall_copies"] == np.mean(altered["dense"] <= dense["copy_limit"])
    assert sparse[["compared", "sure", "copies", "near"]].tolist() == [3, 2, 2, 2]
    assert sparse["recall_sure"] == 1
    assert found.loc[(CROSS, UNLIKE), "images"] == 2000
    assert dense["reach"] == pytest.approx(1.5 * 0.396)
    kept = graded(pairs, found.reset_index())
    assert kept["difference"].max() <= dense["reach"]
    of_dense = kept[kept["domain"] == "dense"].groupby("grade")["difference"].max()
    assert of_dense[Grade.SURE] <= dense["sure_limit"] < of_dense[Grade.COPY]
    assert of_dense[Grade.COPY] <= dense["copy_limit"] < of_dense[Grade.NEAR]


def test_no_pair_needs_no_limit():
    pairs = pairs_of("d", np.empty(0))
    found = limits(pairs, pd.Series({"d": 3}), {}, NearConfig())
    assert found.empty and graded(pairs, found).empty


@pytest.mark.parametrize(("difference", "reach"), [(0.0, 0.5), (7.0, 1.0)])
def test_the_reach_of_copies_is_bounded_both_ways(difference: float, reach: float) -> None:
    altered = {"d": np.full(9, difference)}
    found = limits(pairs_of("d", np.array([0.4])), pd.Series({"d": 3}), altered, NearConfig())
    assert found["reach"].tolist() == [reach]
