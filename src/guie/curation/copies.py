"""What copies mean: leaks, label conflicts, duplicates. Only training images are dropped.

An image goes only where it is itself linked to one that stays: a chain of small steps, as of the
frames of a film, does not take its far end with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd


def linked_rows(table: pd.DataFrame, links: pd.DataFrame) -> pd.DataFrame:
    """The links with label and split of both images, once for each row an image stands in."""
    rows = table[["image_path", "label", "split"]]
    others = rows.rename(columns=lambda name: f"other_{name.removeprefix('image_')}")
    return links.merge(rows, on="image_path").merge(others, on="other_path")


def find_leaks(pairs: pd.DataFrame, policy: str) -> pd.DataFrame:
    """Training images (`image_path`) that are copies of a val or test image (`other_path`).

    A Met-like image that stands in train and in the index is one image, not a copy of itself.
    """
    trained, tested = pairs["split"] == "train", pairs["other_split"] == "train"
    leaks = pd.concat([pairs[trained & ~tested], _turned(pairs[~trained & tested])])
    action = {"stop": "stop", "drop_train": "dropped", "declared": "declared"}[policy]
    leaks = leaks.assign(kind="leak", action=action)
    return leaks.sort_values(["image_path", "other_path"], ignore_index=True)


def find_conflicts(pairs: pd.DataFrame, policy: str) -> pd.DataFrame:
    """Copies on one side, training or evaluation, that have no label in common."""
    side = _same_side(pairs)
    conflicts = side[~_share_a_label(side)]
    trained = conflicts["split"] == "train"
    action = {"drop_all": "both dropped", "stop": "stop"}.get(policy, "reported")
    conflicts = conflicts.assign(kind="conflict", action=np.where(trained, action, "reported"))
    if policy == "keep_first":
        conflicts = _keep_first(conflicts, trained)
    return conflicts


def find_duplicates(pairs: pd.DataFrame, policies: Mapping[str, str]) -> pd.DataFrame:
    """Copies on one side with a label in common.

    Args:
        pairs: of `linked_rows`.
        policies: `drop` or `report`, by what a link is, `exact` or `near`.
    """
    side = _same_side(pairs)
    duplicates = side[_share_a_label(side)]
    duplicates = duplicates.assign(kind=duplicates["copy"] + " duplicate", action="reported")
    may_drop = duplicates["copy"].map(policies) == "drop"
    return _keep_first(duplicates, may_drop & (duplicates["split"] == "train"))


def _keep_first(pairs: pd.DataFrame, may_drop: pd.Series) -> pd.DataFrame:
    """Drop each image that is linked to an earlier one that stays.

    Of the pairs that may drop, those that do remain; the others are only reported.
    """
    at_stake = pairs[may_drop].sort_values(["image_path", "other_path"])
    gone: set[str] = set()
    causes = []
    ends = zip(at_stake.index, at_stake["image_path"], at_stake["other_path"], strict=True)
    for row, later, earlier in ends:  # by path: whether the earlier one stays is known
        if later not in gone and earlier not in gone:
            gone.add(later)
            causes.append(row)
    action = pairs["action"].mask(pairs.index.isin(causes), "dropped")
    pairs = pairs.assign(action=action)[~may_drop | pairs.index.isin(causes)]
    return pairs.reset_index(drop=True)


def _same_side(pairs: pd.DataFrame) -> pd.DataFrame:
    same = (pairs["split"] == "train") == (pairs["other_split"] == "train")
    return pairs[same].reset_index(drop=True)


def _share_a_label(pairs: pd.DataFrame) -> pd.Series:
    labels = zip(pairs["label"], pairs["other_label"], strict=True)
    shared = [not set(a.split("|")).isdisjoint(b.split("|")) for a, b in labels]
    return pd.Series(shared, index=pairs.index, dtype=bool)


def _turned(pairs: pd.DataFrame) -> pd.DataFrame:
    """The same pairs with the two images exchanged."""
    names = {}
    for one, other in (("image_path", "other_path"), ("label", "other_label")):
        names |= {one: other, other: one}
    return pairs.rename(columns={**names, "split": "other_split", "other_split": "split"})
