"""Whole classes held out for testing and validation."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from guie.base.seeds import seeded_draws
from guie.curation.classes import apply_merges
from guie.data.manifest.reading import class_names, memberships


def choose_test_classes(
    table: pd.DataFrame,
    fraction: float,
    seed: int,
    leave: Collection[str] = (),
    merge: Mapping[str, str] | None = None,
) -> set[str]:
    """Choose a share of each domain's train classes to test on, as `held_out_classes` does.

    Domains that have a test split, and those in `leave`, keep all their classes in train. So do classes
    that cleaning will join to one of them. Any other class to `merge` moves with the one that absorbs it.
    """
    leave = {*leave, *table.loc[table["split"] == "test", "domain"]}
    renamed = apply_merges(table, merge or {})
    left = table["domain"].isin(leave) | renamed["domain"].isin(leave)
    train = renamed["split"] == "train"
    stay = set(memberships(renamed[train & left])["label"])
    return class_names(table.loc[_held_out(renamed[train & ~left], fraction, seed, stay), "label"])


def move_to_test(table: pd.DataFrame, classes: Collection[str]) -> pd.DataFrame:
    """Move the train images of these classes to test, each as both query and index."""
    # Classes that share an image move together, so the first label of an image decides.
    moved = (table["split"] == "train") & table["label"].str.split("|").str[0].isin(classes)
    return _moved(table, moved, "test")


def split_validation(
    table: pd.DataFrame, fraction: float, seed: int, leave: Collection[str] = ()
) -> pd.DataFrame:
    """Move a share of each domain's train classes to val, each image as both query and index.

    Domains that have a val split, and those in `leave`, do not change. `table` is indexed from 0.
    """
    if fraction == 0:
        return table
    leave = {*leave, *table.loc[table["split"] == "val", "domain"]}
    train = table[(table["split"] == "train") & ~table["domain"].isin(leave)]
    return _moved(table, table.index.isin(_held_out(train, fraction, seed)), "val")


def _moved(table: pd.DataFrame, rows: pd.Series | np.ndarray, split: str) -> pd.DataFrame:
    return table.assign(
        split=table["split"].mask(rows, split), role=table["role"].mask(rows, "both")
    )


def _held_out(
    train: pd.DataFrame, fraction: float, seed: int, stay: Collection[str] = ()
) -> list[int]:
    """Return the rows of the `held_out_classes` of each domain."""
    rows: list[int] = []
    for _, members in memberships(train).groupby("domain"):
        held_out = members["label"].isin(held_out_classes(members, fraction, seed, stay))
        rows += members.loc[held_out, "row"].tolist()
    return rows


def held_out_classes(
    members: pd.DataFrame, fraction: float, seed: int, stay: Collection[str] = ()
) -> set[str]:
    """Choose the held-out classes of one domain: a rounded share, at least one, never all.

    Classes that share an image move together. A class with one image stays in train, because its
    query would have no positive, and so do those in `stay`. The order depends only on the seed and
    the class names.
    """
    images = members["label"].value_counts().to_dict()
    target = min(max(1, round(fraction * len(images))), len(images) - 1)
    groups = _linked_classes(members)
    chosen: set[str] = set()
    for position in np.argsort(seeded_draws(seed, (group[0] for group in groups))):
        group = groups[position]
        free = all(images[label] > 1 and label not in stay for label in group)
        if len(chosen) + len(group) <= target and free:
            chosen.update(group)
        if len(chosen) == target:
            break
    return chosen


def _linked_classes(members: pd.DataFrame) -> list[list[str]]:
    """Group classes so that no image has labels in two groups; sort within each group."""
    codes, names = pd.factorize(members["label"], sort=True)
    rows = members["row"].to_numpy()
    same = rows[1:] == rows[:-1]  # neighbouring labels of one image
    links = codes[:-1][same], codes[1:][same]
    graph = coo_matrix((np.ones(same.sum()), links), shape=(len(names), len(names)))
    _, group_C = connected_components(graph, directed=False)
    return pd.Series(names, dtype=object).groupby(group_C).agg(list).tolist()
