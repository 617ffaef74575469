"""Means of groups under resampled clusters: the draws behind `guie.evaluation.statistics`.

Each draw of a group takes as many of its clusters as it has, with replacement, and all queries of
each. Its mean is the drawn clusters' sum over their count of queries: both vary from draw to draw.
This is the bootstrap itself, no approximation by Poisson counts: a draw of 100,000 clusters costs a
millisecond.

Shape legend: Q queries, M columns of values, T = M + 1 their totals and the count of queries,
C clusters of one group, G groups, D draws, B draws of one block.
"""

from __future__ import annotations

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
