"""The validation split: whole classes leave train, so that validation retrieves unseen ones."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from guie.base.seeds import seeded_draws
from guie.data.manifest.memberships import memberships


def split_validation(
    table: pd.DataFrame, fraction: float, seed: int, leave: Collection[str] = ()
) -> pd.DataFrame:
    """Move a share of each domain's train classes to val, every image query and index.

    A domain with a val split, and those in `leave`, stay as they are. `table` is indexed from 0.
    """
    if fraction == 0:
        return table
    leave = {*leave, *table.loc[table["split"] == "val", "domain"]}
    train = table[(table["split"] == "train") & ~table["domain"].isin(leave)]
    moved = [
        members.loc[members["label"].isin(held_out_classes(members, fraction, seed)), "row"]
        for _, members in memberships(train).groupby("domain")
    ]
    to_val = table.index.isin(pd.concat(moved)) if moved else np.zeros(len(table), dtype=bool)
    return table.assign(
        split=table["split"].mask(to_val, "val"), role=table["role"].mask(to_val, "both")
    )


def held_out_classes(members: pd.DataFrame, fraction: float, seed: int) -> set[str]:
    """The classes of one domain that validate: a share, rounded, at least one, never all.

    Classes that share an image go together. A class of one image stays in train: its query
    would have no positive. Drawn in an order that depends on the seed and the names alone.
    """
    images = members["label"].value_counts().to_dict()
    target = min(max(1, round(fraction * len(images))), len(images) - 1)
    groups = _linked_classes(members)
    chosen: set[str] = set()
    for position in np.argsort(seeded_draws(seed, (group[0] for group in groups))):
        group = groups[position]
        if len(chosen) + len(group) <= target and all(images[label] > 1 for label in group):
            chosen.update(group)
        if len(chosen) == target:
            break
    return chosen


def _linked_classes(members: pd.DataFrame) -> list[list[str]]:
    """Classes grouped such that no image has labels in two groups; sorted within a group."""
    codes, names = pd.factorize(members["label"], sort=True)
    rows = members["row"].to_numpy()
    same = rows[1:] == rows[:-1]  # neighbouring labels of one image
    links = codes[:-1][same], codes[1:][same]
    graph = coo_matrix((np.ones(same.sum()), links), shape=(len(names), len(names)))
    _, group = connected_components(graph, directed=False)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    return [part.tolist() for part in np.split(names.to_numpy(object)[order], starts[1:])]
