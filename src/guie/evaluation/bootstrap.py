"""How certain a number is: clustered bootstrap intervals, paired differences of two models, spread over
seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

BLOCK_CLUSTERS = 2**16  # drawn at once: what the cache holds, three times as fast as 2**19


class Resampled(NamedTuple):
    """The groups' means as asked and as drawn, and what they rest on."""

    mean_GM: np.ndarray
    mean_DGM: np.ndarray
    queries: int  # those with a value
    lone_groups: int  # groups of one cluster: each draw is the group itself


def resample(
    values_QM: np.ndarray,
    cluster_Q: np.ndarray,
    group_Q: np.ndarray | None,
    draws: int,
    seed: int,
) -> Resampled:
    """Draw the clusters of each group anew; one draw is the same for all columns.

    Groups and clusters are drawn in the order of their names, and summed in an order of their own:
    the order of the rows changes nothing, to the last bit.

    Args:
        values_QM: float; a row with a NaN in any column is left out.
        cluster_Q: names that sort. One that stands in two groups is a cluster in each.
        group_Q: names that sort; None takes all queries as one group.
        draws: at least 1.
        seed: of numpy's default generator.

    Raises:
        ValueError: no row has values, one is infinite, lengths differ, a name is missing, or there
            are no draws.
    """
    if draws < 1:
        raise ValueError(f"draws is {draws}; at least 1")
    tables = _cluster_tables(values_QM, cluster_Q, group_Q)
    rng = np.random.default_rng(seed)
    return Resampled(
        mean_GM=np.stack([_ratio(table_CT.sum(axis=0)) for table_CT in tables]),
        mean_DGM=np.stack([_drawn_means(table_CT, draws, rng) for table_CT in tables], axis=1),
        queries=int(sum(table_CT[:, -1].sum() for table_CT in tables)),
        lone_groups=sum(len(table_CT) == 1 for table_CT in tables),
    )


def _cluster_tables(
    values_QM: np.ndarray, cluster_Q: np.ndarray, group_Q: np.ndarray | None
) -> list[np.ndarray]:
    """For each group, by name, its clusters by name: sums of values and count of queries, [C, T]."""
    values_QM = np.asarray(values_QM, np.float64)
    group_Q = np.zeros(len(values_QM), int) if group_Q is None else group_Q
    if not len(values_QM) == len(cluster_Q) == len(group_Q):
        lengths = f"{len(values_QM)}, {len(cluster_Q)}, {len(group_Q)}"
        raise ValueError(f"values, clusters and groups are one a query, not {lengths}")
    kept_Q = ~np.isnan(values_QM).any(axis=1)
    values_QM = values_QM[kept_Q]
    if not len(values_QM) or np.isinf(values_QM).any():
        raise ValueError(
            "values must be finite, NaN where there is none; at least one must be there"
        )
    group_Q = _codes(group_Q, kept_Q)
    cluster_Q = _codes(cluster_Q, kept_Q)
    # By value within a cluster: the sum is then the same whatever the order of the rows.
    order_Q = np.lexsort((*values_QM.T, cluster_Q, group_Q))
    group_Q, cluster_Q = group_Q[order_Q], cluster_Q[order_Q]
    first_Q = np.append(True, (np.diff(group_Q) != 0) | (np.diff(cluster_Q) != 0))
    start_C = np.flatnonzero(first_Q)
    counted_QT = np.column_stack([values_QM[order_Q], np.ones(len(order_Q))])
    table_CT = np.add.reduceat(counted_QT, start_C, axis=0)
    return np.split(table_CT, np.flatnonzero(np.diff(group_Q[start_C])) + 1)


def _codes(name_Q: np.ndarray, kept_Q: np.ndarray) -> np.ndarray:
    """Names as numbers that sort as they do."""
    code_Q, _ = pd.factorize(np.asarray(name_Q)[kept_Q], sort=True)
    if (code_Q < 0).any():
        raise ValueError("a query with a value has no cluster or no group")
    return np.asarray(code_Q)


def _drawn_means(table_CT: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Means of one group, [D, M]. How often each cluster is drawn is counted, then one product."""
    clusters = len(table_CT)
    means = []
    for start in range(0, draws, step := max(1, BLOCK_CLUSTERS // clusters)):
        size = min(step, draws - start)
        drawn_BC = rng.integers(clusters, size=(size, clusters))
        drawn_BC += clusters * np.arange(size)[:, None]
        times_BC = np.bincount(drawn_BC.ravel(), minlength=size * clusters).reshape(size, clusters)
        means.append(_ratio(times_BC @ table_CT))
    return np.concatenate(means)


def _ratio(total_T: np.ndarray) -> np.ndarray:
    """Sums over their count, the last column: [..., T] -> [..., M]."""
    return np.asarray(total_T[..., :-1] / total_T[..., -1:])


DECIMALS = 12  # a lead smaller than this is rounding

Headline = Callable[[np.ndarray], np.ndarray]  # the groups' means [D, G] -> [D]


@dataclass(frozen=True)
class Interval:
    """A headline, and where it could lie had other classes been asked.

    `low` and `high` are NaN where each group has but one cluster: there is nothing to draw.
    """

    value: float
    low: float
    high: float
    level: float
    draws: int
    queries: int  # those with a value
    lone_groups: int  # groups of one cluster: taken as they are, they add no width


@dataclass(frozen=True)
class Comparison:
    """How far the headline of b is above that of a. `p_better` is NaN where low and high are."""

    difference: float
    low: float
    high: float
    p_better: float  # share of the draws in which b is above a, a tie being half
    level: float
    draws: int
    queries: int
    lone_groups: int


class Spread(NamedTuple):
    """Mean and standard deviation (n - 1; NaN for one run) over n runs."""

    mean: float
    deviation: float
    n: int


def mean_headline(mean_DG: np.ndarray) -> np.ndarray:
    """Groups weigh alike, however many queries each has: UnED's headline, [D]."""
    return np.asarray(mean_DG.mean(axis=1))


def harmonic_headline(mean_DG: np.ndarray) -> np.ndarray:
    """The harmonic mean over groups, PUMA's headline; 0 where one of them is 0: [D]."""
    with np.errstate(divide="ignore"):
        return np.asarray(mean_DG.shape[1] / (1 / mean_DG).sum(axis=1))


def bootstrap(
    values_Q: np.ndarray,
    cluster_Q: np.ndarray,
    group_Q: np.ndarray | None = None,
    *,
    headline: Headline = mean_headline,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The headline and its interval. The order of the rows changes nothing, to the last bit.

    Args:
        values_Q: a metric of each query; NaN for one without positives, which is left out.
        cluster_Q: each query's cluster, its label as a rule. Clusters lie within groups: a name that
            stands in two is drawn for each on its own.
        group_Q: each query's group; None takes all queries as one. A group in which no query has a
            value has no part in the headline.
        headline: `mean_headline`, `harmonic_headline`, or any other [D, G] -> [D].
        draws: how often the clusters are drawn anew.
        level: the share of the draws that the interval holds.
        seed: the same one draws the same clusters, for any values.

    Raises:
        ValueError: no query has a value, one is infinite, lengths differ, a query has no cluster or
            group, no draws, or a level that is not between 0 and 1.
    """
    drawn = resample(np.asarray(values_Q)[:, None], cluster_Q, group_Q, draws, seed)
    value = float(headline(drawn.mean_GM.T)[0])
    low, high = percentiles(headline(drawn.mean_DGM[:, :, 0]), level)
    if drawn.lone_groups == len(drawn.mean_GM):
        low = high = np.nan
    return Interval(value, low, high, level, draws, drawn.queries, drawn.lone_groups)


def paired(
    values_a_Q: np.ndarray,
    values_b_Q: np.ndarray,
    cluster_Q: np.ndarray,
    group_Q: np.ndarray | None = None,
    *,
    headline: Headline = mean_headline,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """How far b is above a, on the same queries and under the same draws.

    A class that is hard for both falls out of the difference, so this tells apart what two intervals
    beside each other leave open. A query without a value in either is left out of both. Arguments
    and errors as in `bootstrap`.
    """
    values_QM = np.column_stack([values_a_Q, values_b_Q])
    drawn = resample(values_QM, cluster_Q, group_Q, draws, seed)
    of_a, of_b = (float(headline(mean_G[None])[0]) for mean_G in drawn.mean_GM.T)
    drawn_a_D, drawn_b_D = (headline(drawn.mean_DGM[:, :, m]) for m in (0, 1))
    difference_D = (drawn_b_D - drawn_a_D).round(DECIMALS)
    low, high = percentiles(difference_D, level)
    p_better = float((difference_D > 0).mean() + (difference_D == 0).mean() / 2)
    if drawn.lone_groups == len(drawn.mean_GM):
        low = high = p_better = np.nan
    difference = round(of_b - of_a, DECIMALS)
    return Comparison(
        difference, low, high, p_better, level, draws, drawn.queries, drawn.lone_groups
    )


def verdict(comparison: Comparison, names: tuple[str, str], metric: str) -> str:
    """The comparison in a sentence; decided where the interval leaves 0 outside.

    `names` are those of a and b, in this order, whichever is ahead.
    """
    difference, low, high = comparison.difference, comparison.low, comparison.high
    behind, ahead = names
    share = comparison.p_better
    if np.isnan(low):
        return f"{metric}: undecided: one class a domain, nothing that could be drawn anew"
    if difference < 0:
        behind, ahead = ahead, behind
        difference, low, high, share = -difference, -high, -low, 1 - share
    decimals = int(np.clip(1 - np.floor(np.log10(max(high - low, 1e-9))), 3, 6))
    by, least, most = (_plain(number, decimals) for number in (difference, low, high))
    sentence = f"{ahead} is ahead of {behind} by {by}"
    if low <= 0:
        sentence = f"undecided: {ahead} is {by} above {behind}"
    lone = comparison.lone_groups
    alone = f"; {lone} domain(s) of one class add no width" if lone else ""
    return (
        f"{metric}: {sentence} ({100 * comparison.level:g} % {least} to {most};"
        f" ahead in {100 * share:.1f} % of {comparison.draws:,} draws{alone})"
    )


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean and deviation of one number over runs. Raises ValueError for no run, or one without."""
    runs = np.asarray(values, np.float64)
    if not len(runs) or not np.isfinite(runs).all():
        raise ValueError(f"one finite value a run, of at least one run; not {list(values)}")
    deviation = float(runs.std(ddof=1)) if len(runs) > 1 else np.nan
    return Spread(float(runs.mean()), deviation, len(runs))


def percentiles(value_D: np.ndarray, level: float) -> tuple[float, float]:
    """The interval that holds that share of the draws. Raises ValueError for a level beyond 0 to 1."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; must lie between 0 and 1")
    low, high = np.quantile(value_D, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _plain(number: float, decimals: int) -> str:
    """.012 or -.004, as the tables print it."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{round(number, decimals) + 0.0:.{decimals}f}")
