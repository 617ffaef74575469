"""What copies mean: leaks, label conflicts, duplicates. Only training images are dropped.

A rule finds each image at most once, with one other that shows why. An image goes only where it is
itself linked to one that stays: a chain of small steps, as of the frames of a film, does not take
its far end with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from guie.curation.links import Links
from guie.curation.witnesses import (
    Side,
    across,
    alike_one_that_stays,
    unlike,
    unlike_one_that_stays,
)


def find_leaks(table: pd.DataFrame, links: Links, policy: str) -> pd.DataFrame:
    """Training images that are copies of a val or test image; `other_path` is the most alike.

    A Met-like image that stands in train and in the index is one image, not a copy of itself.
    """
    trained, held = _sides(table, links)
    ends = across(_side(trained, links), _side(held, links))
    action = {"stop": "stop", "drop_train": "dropped", "declared": "declared"}[policy]
    return _found(trained, held, ends, links).assign(kind="leak", action=action)


def find_conflicts(table: pd.DataFrame, links: Links, policy: str) -> pd.DataFrame:
    """Images with a copy on their side, training or evaluation, that has none of their labels.

    `other_path` is the most alike; where the first is kept, the first by path that stays.
    """
    actions = {"keep_first": "dropped", "drop_all": "both dropped", "stop": "stop"}
    found = []
    for rows, wanted in zip(_sides(table, links), (policy, "report"), strict=True):
        rule = unlike_one_that_stays if wanted == "keep_first" else unlike
        conflicts = _found(rows, rows, rule(_side(rows, links)), links)
        found.append(conflicts.assign(action=actions.get(wanted, "reported")))
    return _by_path(found).assign(kind="conflict")


def find_duplicates(table: pd.DataFrame, links: Links, policies: Mapping[str, str]) -> pd.DataFrame:
    """Images with a copy on their side that shares a label, is before them by path, and stays.

    Args:
        table: the rows that are left.
        links: of their images, and maybe of more.
        policies: `drop` or `report`, by what a copy is, `exact` or `near`.
    """
    dropped = {kind for kind, policy in policies.items() if policy == "drop"}
    found = []
    for rows, goes in zip(_sides(table, links), (dropped, set()), strict=True):
        ends = alike_one_that_stays(_side(rows, links), goes)
        duplicates = _found(rows, rows, ends, links)
        action = np.where(duplicates["copy"].isin(goes), "dropped", "reported")
        found.append(duplicates.assign(action=action, kind=duplicates["copy"] + " duplicate"))
    return _by_path(found)


def _sides(table: pd.DataFrame, links: Links) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The training and the evaluation images that have copies: each once, by path, with picture."""
    rows = table[["image_path", "label", "split"]]
    rows = rows.assign(picture=links.pictures.loc[rows["image_path"]].to_numpy())
    copied = rows["picture"].duplicated(keep=False) | rows["picture"].isin(links.near["picture"])
    rows = rows[copied].sort_values("image_path", kind="stable")
    trained = rows["split"] == "train"
    sides = (rows[here].drop_duplicates("image_path") for here in (trained, ~trained))
    return tuple(side.reset_index(drop=True) for side in sides)


def _side(rows: pd.DataFrame, links: Links) -> Side:
    sets = {label: frozenset(label.split("|")) for label in rows["label"].unique()}
    labels = rows["label"].map(sets).tolist()
    return Side(rows["image_path"].tolist(), rows["picture"].tolist(), labels, links.beside)


def _found(
    rows: pd.DataFrame, others: pd.DataFrame, ends: Iterable[tuple[int, int]], links: Links
) -> pd.DataFrame:
    """The rows at each end, as findings without kind and action; `copy` is `exact` or `near`."""
    ends_P2 = np.array(list(ends), np.int64).reshape(-1, 2)
    one, two = (side.iloc[end] for side, end in zip((rows, others), ends_P2.T, strict=True))
    names = {"image_path": "other_path", "picture": "other"}
    two = two.rename(columns={"label": "other_label", "split": "other_split"} | names)
    found = pd.concat([part.reset_index(drop=True) for part in (one, two)], axis=1)
    found["copy"] = np.where(found["picture"] == found["other"], "exact", "near")
    found = found.merge(links.near, how="left", on=["picture", "other"])
    return found.fillna({"distance": 0, "similarity": 1.0}).astype({"distance": np.int64})


def _by_path(found: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(found).sort_values("image_path", kind="stable", ignore_index=True)
