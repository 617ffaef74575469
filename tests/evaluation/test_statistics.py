"""Draws against loops with the same random numbers; intervals against what they promise."""

from dataclasses import replace

import numpy as np
import pytest

from guie.evaluation import bootstrap as resampling
from guie.evaluation.bootstrap import (
    Comparison,
    harmonic_headline,
    mean_headline,
    paired,
    verdict,
)


def clustered(seed, clusters, size, between, within=1.0, truth=0.0):
    """Values that share a part with their cluster, and the clusters of about `size` queries."""
    rng = np.random.default_rng(seed)
    cluster_Q = np.repeat(np.arange(clusters), rng.integers(1, 2 * size, clusters))
    shared_C = rng.normal(0, between, clusters)
    return truth + shared_C[cluster_Q] + rng.normal(0, within, len(cluster_Q)), cluster_Q


def three_groups(seed=0):
    """Groups of different sizes and levels, with strings for names and a few missing values."""
    values, clusters, groups = [], [], []
    for name, count, truth in (("cars", 5, 0.2), ("art", 12, 0.6), ("logos", 30, 0.9)):
        values_Q, cluster_Q = clustered([seed, count], count, 4, 0.05, 0.05, truth)
        values.append(values_Q)
        clusters += [f"{name}/{c}" for c in cluster_Q]
        groups += [name] * len(values_Q)
    values_Q = np.concatenate(values)
    values_Q[::17] = np.nan
    return values_Q, np.array(clusters), np.array(groups)


def bootstrap(values_Q, *names, **settings):
    """One model's headline and interval: its lead over a model whose every score is 0."""
    return paired(np.where(np.isnan(values_Q), np.nan, 0), values_Q, *names, **settings)


def slow_draws(values_Q, cluster_Q, group_Q, draws, seed):
    """Means [draws, groups] by loops over lists, given the same random numbers."""
    rng = np.random.default_rng(seed)
    columns = []
    for group in sorted(set(group_Q)):
        members = {}
        for value, cluster, of_group in zip(values_Q, cluster_Q, group_Q, strict=True):
            if of_group == group and not np.isnan(value):
                members.setdefault(cluster, []).append(value)
        lists = [members[name] for name in sorted(members)]
        column = []
        for _ in range(draws):
            picked = rng.integers(len(lists), size=len(lists))
            drawn = [value for place in picked for value in lists[place]]
            column.append(sum(drawn) / len(drawn))
        columns.append(column)
    return np.array(columns).T


@pytest.mark.parametrize("block", [1, 50, 2**16])
@pytest.mark.parametrize("headline", [mean_headline, harmonic_headline])
def test_a_comparison_equals_its_slow_twin(headline, block, monkeypatch):
    """Of two models drawn alike; a query without a value in either is left out."""
    monkeypatch.setattr(resampling, "BLOCK_CLUSTERS", block)
    values_Q, cluster_Q, group_Q = three_groups()
    better_Q = values_Q + np.random.default_rng(0).normal(0.005, 0.05, len(values_Q))
    better_Q[3] = np.nan
    found = paired(values_Q, better_Q, cluster_Q, group_Q, headline=headline, draws=200)
    drawn, values_Q[3] = [], np.nan
    for model_Q in (values_Q, better_Q):
        means_DG = slow_draws(model_Q, cluster_Q, group_Q, 200, 0)
        harmonic = headline is harmonic_headline
        drawn.append(3 / (1 / means_DG).sum(axis=1) if harmonic else means_DG.mean(axis=1))
    difference_D = drawn[1] - drawn[0]
    assert found.p_better == pytest.approx((difference_D > 0).mean())
    assert [found.low, found.high] == pytest.approx(np.quantile(difference_D, [0.025, 0.975]))
    assert found.low < found.difference < found.high
    assert found.queries == np.isfinite(values_Q).sum()
    assert (found.level, found.draws, found.lone_groups) == (0.95, 200, 0)
    swapped = paired(better_Q, values_Q, cluster_Q, group_Q, headline=headline, draws=200)
    assert swapped.difference == -found.difference
    assert swapped.p_better == pytest.approx(1 - found.p_better)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """And one that takes the queries for independent does not."""
    hits = np.zeros(2)
    for simulation in range(200):
        values_Q, cluster_Q = clustered(simulation, clusters=50, size=6, between=0.7, truth=0.4)
        for way, units_Q in enumerate((cluster_Q, np.arange(len(values_Q)))):
            interval = bootstrap(values_Q, units_Q, draws=300)
            hits[way] += interval.low <= 0.4 <= interval.high
    by_cluster, by_query = hits / 200
    assert by_cluster == pytest.approx(0.945, abs=0.045)  # three deviations of a share of 200
    assert by_query < 0.8


def test_sums_round_alike_in_any_order_of_rows():
    values_Q, cluster_Q = clustered(0, clusters=40, size=50, between=1.0)
    order = np.random.default_rng(1).permutation(len(values_Q))
    means = [
        resampling.resample(v[:, None], c, None, draws=50, seed=0).mean_DGM
        for v, c in ((values_Q, cluster_Q), (values_Q[order], cluster_Q[order]))
    ]
    np.testing.assert_array_equal(*means)


def test_a_group_of_one_cluster_adds_no_width():
    values_Q, cluster_Q = clustered(0, 30, 5, 1.0)
    alone = bootstrap(values_Q, cluster_Q, draws=200)
    with_lone = bootstrap(
        np.append(values_Q, [3.0, 4.0]),
        np.append(cluster_Q, [0, 0]),  # a name in two groups is a cluster in each
        np.append(np.zeros(len(values_Q)), [1, 1]),
        draws=200,
    )
    assert with_lone.lone_groups == 1
    assert with_lone.difference == pytest.approx((alone.difference + 3.5) / 2)
    assert with_lone.high - with_lone.low == pytest.approx((alone.high - alone.low) / 2)
    nothing = paired([0.2, 0.4, 0.9], [0.3, 0.5, 1], ["a", "a", "b"], ["x", "x", "y"])
    assert nothing.difference == pytest.approx(0.1) and nothing.lone_groups == 2
    assert np.isnan([nothing.low, nothing.high, nothing.p_better]).all()
    assert "undecided: every domain has a single class" in verdict(nothing, ("A", "B"), "R@1")


def test_no_value_has_no_interval():
    with pytest.raises(ValueError, match="no query has a value"):
        bootstrap(np.full(3, np.nan), ["a", "b", "c"])


def test_a_lead_that_is_rounding_is_none():
    """The same values within each class, on other queries: the sums differ by their rounding."""
    values_Q, cluster_Q = clustered(0, 30, 6, 1.0)
    moved_Q = np.concatenate([values_Q[cluster_Q == c][::-1] for c in range(30)])
    assert (moved_Q != values_Q).any()
    for other_Q in (values_Q, moved_Q):
        same = paired(values_Q, other_Q, cluster_Q, draws=100)
        assert (same.difference, same.low, same.high, same.p_better) == (0, 0, 0, 0.5)
        assert "undecided" in verdict(same, ("A", "B"), "R@1")


NEW, OLD = "new is ahead of old by", "old is ahead of new by"


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((0.0121, 0.0042, 0.0199, 0.998), f"{NEW} .012 (95 % .004 to .020; 99.8 %"),
        ((-0.0121, -0.0199, -0.0042, 0.002), f"{OLD} .012 (95 % .004 to .020; 99.8 %"),
        ((0.003, -0.004, 0.01, 0.781), "undecided: new is .003 above old (95 % -.004 to .010; 78.1 %"),
        # A narrow interval has two digits of its width.
        ((0.00042, 0.00021, 0.00063, 1.0), f"{NEW} .00042 (95 % .00021 to .00063; 100.0 %"),
    ],
)  # fmt: skip
def test_verdicts_name_who_is_ahead(numbers, sentence):
    comparison = Comparison(*numbers, level=0.95, draws=2000, queries=500, lone_groups=0)
    found = verdict(comparison, ("old", "new"), "R@1")
    assert found.replace("ahead in ", "") == f"R@1: {sentence} of 2,000 draws)"
    lone = replace(comparison, lone_groups=2)
    assert "draws; 2 domain(s) with a single class add no width)" in verdict(lone, "ab", "R")
