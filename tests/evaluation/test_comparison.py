"""Which of two models is ahead: drawn together, told in words, wrong as seldom as the level says."""

import numpy as np
import pytest

from grouped_values import clustered, slow_draws, three_groups
from guie.evaluation.bootstrap import (
    Comparison,
    bootstrap,
    harmonic_headline,
    mean_headline,
    paired,
    verdict,
)


@pytest.mark.parametrize("headline", [mean_headline, harmonic_headline])
def test_equal_models_are_neither_ahead(headline):
    values_Q, cluster_Q, group_Q = three_groups()
    same = paired(values_Q, values_Q.copy(), cluster_Q, group_Q, headline=headline, draws=100)
    assert (same.difference, same.low, same.high, same.p_better) == (0, 0, 0, 0.5)
    assert "undecided" in verdict(same, ("A", "B"), "R@1")


def test_a_lead_that_is_rounding_is_none():
    """The same values within each class, on other queries: the sums differ by their rounding."""
    values_Q, cluster_Q = clustered(0, 30, 6, 1.0)
    moved_Q = np.concatenate([values_Q[cluster_Q == c][::-1] for c in range(30)])
    assert (moved_Q != values_Q).any()
    same = paired(values_Q, moved_Q, cluster_Q, draws=100)
    assert (same.difference, same.low, same.high, same.p_better) == (0, 0, 0, 0.5)


def test_a_comparison_equals_the_two_models_drawn_alike():
    values_Q, cluster_Q, group_Q = three_groups()
    better_Q = values_Q + np.random.default_rng(0).normal(0.005, 0.05, len(values_Q))
    comparison = paired(values_Q, better_Q, cluster_Q, group_Q, draws=200, seed=4)
    drawn = [slow_draws(v, cluster_Q, group_Q, 200, 4).mean(axis=1) for v in (values_Q, better_Q)]
    difference_D = drawn[1] - drawn[0]
    assert comparison.p_better == pytest.approx((difference_D > 0).mean())
    percentiles = tuple(np.quantile(difference_D, [0.025, 0.975]))
    assert (comparison.low, comparison.high) == pytest.approx(percentiles)
    swapped = paired(better_Q, values_Q, cluster_Q, group_Q, draws=200, seed=4)
    assert swapped.difference == -comparison.difference
    assert swapped.p_better == pytest.approx(1 - comparison.p_better)


def test_a_comparison_is_narrower_than_its_two_intervals():
    values_Q, cluster_Q = clustered(0, 80, 5, between=2.0)
    better_Q = values_Q + np.random.default_rng(0).normal(0.1, 0.3, len(values_Q))
    one, other = (bootstrap(v, cluster_Q, draws=300) for v in (values_Q, better_Q))
    comparison = paired(values_Q, better_Q, cluster_Q, draws=300)
    assert other.low < one.high  # side by side they overlap
    assert comparison.low > 0 and comparison.p_better == 1
    assert comparison.high - comparison.low < 0.2 * (one.high - one.low)


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        (
            (0.0121, 0.0042, 0.0199, 0.998),
            "new is ahead of old by .012 (95 % .004 to .020; ahead in 99.8 % of 2,000 draws)",
        ),
        (
            (-0.0121, -0.0199, -0.0042, 0.002),
            "old is ahead of new by .012 (95 % .004 to .020; ahead in 99.8 % of 2,000 draws)",
        ),
        (
            (0.003, -0.004, 0.01, 0.781),
            "undecided: new is .003 above old (95 % -.004 to .010; ahead in 78.1 % of 2,000 draws)",
        ),
        (  # a narrow interval is told to two digits of its width
            (0.00042, 0.00021, 0.00063, 1.0),
            "new is ahead of old by .00042"
            " (95 % .00021 to .00063; ahead in 100.0 % of 2,000 draws)",
        ),
        (
            (10.5, -0.0001, 21, 0.975),
            "undecided: new is 10.500 above old"
            " (95 % .000 to 21.000; ahead in 97.5 % of 2,000 draws)",
        ),
    ],
)
def test_verdicts_name_who_is_ahead(numbers, sentence):
    comparison = Comparison(*numbers, level=0.95, draws=2000, queries=500, lone_groups=0)
    assert verdict(comparison, ("old", "new"), "R@1") == f"R@1: {sentence}"


def test_a_verdict_tells_of_groups_without_width():
    comparison = Comparison(0.01, 0.001, 0.02, 0.99, 0.9, 500, queries=500, lone_groups=2)
    assert verdict(comparison, ("old", "new"), "R@1").endswith(
        "(90 % .001 to .020; ahead in 99.0 % of 500 draws; 2 domain(s) with a single class add no width)"
    )


def test_models_of_one_kind_are_told_apart_as_seldom_as_the_level_says():
    decided = 0
    for simulation in range(200):
        values_Q, cluster_Q = clustered(simulation, clusters=50, size=6, between=1.0)
        rng = np.random.default_rng(simulation)
        moved_C = rng.normal(0, 0.3, 50)  # some classes gain, some lose, none on average
        other_Q = values_Q + moved_C[cluster_Q] + rng.normal(0, 0.3, len(values_Q))
        comparison = paired(values_Q, other_Q, cluster_Q, draws=300, seed=simulation)
        decided += not comparison.low <= 0 <= comparison.high
    assert decided / 200 == pytest.approx(0.055, abs=0.045)
