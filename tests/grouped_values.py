"""Values of queries in clusters in groups, and slow draws of them."""

from __future__ import annotations

import numpy as np


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
