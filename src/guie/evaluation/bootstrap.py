"""Estimate uncertainty: clustered bootstrap intervals, and paired model differences."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

BLOCK_CLUSTERS = 2**16  # drawn at once: fits the CPU cache, three times as fast as 2**19


class Resampled(NamedTuple):
    """Observed and resampled means of each group, with the counts behind them."""

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
    """Resample the clusters of each group with replacement; all columns share the same draws.

    Groups and clusters are drawn in the order of their names and summed in a fixed order. The result
    is therefore bit-identical for any order of the rows.

    Args:
        values_QM: float; a row with a NaN in any column is left out.
        cluster_Q: sortable names. A name in two groups is a separate cluster in each.
        group_Q: sortable names; None treats all queries as one group.

    Raises ValueError if no row has values.
    """
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
    """Return, per group, the sums of values and the query count of each cluster, [C, T], sorted by name."""
    values_QM = np.asarray(values_QM, np.float64)
    group_Q = np.zeros(len(values_QM), int) if group_Q is None else group_Q
    kept_Q = ~np.isnan(values_QM).any(axis=1)
    values_QM = values_QM[kept_Q]
    if not len(values_QM):
        raise ValueError("no query has a value")
    # Names as integers with the same sort order
    group_Q, cluster_Q = (
        pd.factorize(np.asarray(name_Q)[kept_Q], sort=True)[0] for name_Q in (group_Q, cluster_Q)
    )
    # Sort by value within a cluster, so that the sum does not depend on the order of the rows.
    order_Q = np.lexsort((*values_QM.T, cluster_Q, group_Q))
    group_Q, cluster_Q = group_Q[order_Q], cluster_Q[order_Q]
    first_Q = np.append(True, (np.diff(group_Q) != 0) | (np.diff(cluster_Q) != 0))
    start_C = np.flatnonzero(first_Q)
    counted_QT = np.column_stack([values_QM[order_Q], np.ones(len(order_Q))])
    table_CT = np.add.reduceat(counted_QT, start_C, axis=0)
    return np.split(table_CT, np.flatnonzero(np.diff(group_Q[start_C])) + 1)


def _drawn_means(table_CT: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return resampled means of one group, [D, M], by one matrix product with cluster counts."""
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
    """Divide sums by their count, the last column: [..., T] -> [..., M]."""
    return np.asarray(total_T[..., :-1] / total_T[..., -1:])


LEVEL = 0.95  # the fraction of the draws that an interval covers
DECIMALS = 12  # smaller differences are rounding errors

Headline = Callable[[np.ndarray], np.ndarray]  # the groups' means [D, G] -> [D]


@dataclass(frozen=True)
class Comparison:
    """Difference of the headline metric, b minus a, with its bootstrap interval over classes.

    `low`, `high` and `p_better` are NaN if every group has only one cluster: nothing is resampled.
    """

    difference: float
    low: float
    high: float
    p_better: float  # fraction of draws in which b is above a; a tie counts half
    level: float
    draws: int
    queries: int  # those with a value
    lone_groups: int  # groups of one cluster: not resampled, they add no width


def mean_headline(mean_DG: np.ndarray) -> np.ndarray:
    """Return the mean over equally weighted groups, UnED's headline: [D]."""
    return np.asarray(mean_DG.mean(axis=1))


def harmonic_headline(mean_DG: np.ndarray) -> np.ndarray:
    """Return the harmonic mean over groups, PUMA's headline (arXiv 2309.08944); 0 if one is 0: [D]."""
    with np.errstate(divide="ignore"):
        return np.asarray(mean_DG.shape[1] / (1 / mean_DG).sum(axis=1))


def paired(
    values_a_Q: np.ndarray,
    values_b_Q: np.ndarray,
    cluster_Q: np.ndarray,
    group_Q: np.ndarray | None = None,
    *,
    headline: Headline = mean_headline,
    draws: int = 2000,
) -> Comparison:
    """Return the difference of b and a, on the same queries and with the same draws.

    A class that is hard for both models cancels out of the difference. The test is therefore more
    sensitive than a comparison of two separate intervals.

    Args:
        values_a_Q, values_b_Q: a metric of each query; NaN for one without positives. A query without
            a value in either model is left out of both.
        cluster_Q, group_Q: see `resample`. A group without any value is left out of the headline.
    """
    values_QM = np.column_stack([values_a_Q, values_b_Q])
    drawn = resample(values_QM, cluster_Q, group_Q, draws, seed=0)
    of_a, of_b = (float(headline(mean_G[None])[0]) for mean_G in drawn.mean_GM.T)
    drawn_a_D, drawn_b_D = (headline(drawn.mean_DGM[:, :, m]) for m in (0, 1))
    difference_D = (drawn_b_D - drawn_a_D).round(DECIMALS)
    low, high = percentiles(difference_D)
    p_better = float((difference_D > 0).mean() + (difference_D == 0).mean() / 2)
    if drawn.lone_groups == len(drawn.mean_GM):
        low = high = p_better = np.nan
    difference = round(of_b - of_a, DECIMALS)
    return Comparison(
        difference, low, high, p_better, LEVEL, draws, drawn.queries, drawn.lone_groups
    )


def verdict(comparison: Comparison, names: tuple[str, str], metric: str) -> str:
    """Return the comparison of models a and b as a sentence; it is decided if the interval excludes 0."""
    difference, low, high = comparison.difference, comparison.low, comparison.high
    behind, ahead = names
    share = comparison.p_better
    if np.isnan(low):
        return f"{metric}: undecided: every domain has a single class, nothing to resample"
    if difference < 0:
        behind, ahead = ahead, behind
        difference, low, high, share = -difference, -high, -low, 1 - share
    decimals = int(np.clip(1 - np.floor(np.log10(max(high - low, 1e-9))), 3, 6))
    by, least, most = (_plain(number, decimals) for number in (difference, low, high))
    sentence = f"{ahead} is ahead of {behind} by {by}"
    if low <= 0:
        sentence = f"undecided: {ahead} is {by} above {behind}"
    lone = comparison.lone_groups
    alone = f"; {lone} domain(s) with a single class add no width" if lone else ""
    return (
        f"{metric}: {sentence} ({100 * comparison.level:g} % {least} to {most};"
        f" ahead in {100 * share:.1f} % of {comparison.draws:,} draws{alone})"
    )


def percentiles(value_D: np.ndarray) -> tuple[float, float]:
    """Return the central interval of the draws, which covers LEVEL of them."""
    low, high = np.quantile(value_D, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _plain(number: float, decimals: int) -> str:
    """Format a number like the tables: .012 or -.004."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{round(number, decimals) + 0.0:.{decimals}f}")
