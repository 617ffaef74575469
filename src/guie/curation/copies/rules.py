"""What copies mean: placeholders, leaks, label conflicts, duplicates.

Only training images are dropped. A rule finds each image at most once, with one other that shows
why. A find across labels or splits costs most, so it takes evidence beyond doubt to drop or to stop
for it; what is merely near is reported, and a person may say what it is. An image goes only where
it is itself linked to one that stays: a chain of small steps, as of the frames of a film, does not
take its far end with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from guie.curation.copies.evidence import Grade
from guie.curation.copies.links import Links
from guie.curation.copies.witnesses import (
    Side,
    across,
    alike_one_that_stays,
    unlike,
    unlike_one_that_stays,
)

EQUAL = {"distance": 0, "similarity": 1.0, "difference": 0.0, "said": False}
EQUAL |= {"sure_limit": 0.0, "copy_limit": 0.0}


def find_leaks(table: pd.DataFrame, links: Links, policy: str) -> pd.DataFrame:
    """Training images that are copies of a val or test image; `other_path` differs least.

    A Met-like image that stands in train and in the index is one image, not a copy of itself.
    """
    action = {"stop": "stop", "drop_train": "dropped", "declared": "declared"}[policy]

    def leaks_among(table: pd.DataFrame, links: Links) -> pd.DataFrame:
        trained, held = _sides(table, links)
        return _as_findings(trained, held, across(_side(trained, links), _side(held, links)), links)

    sure = leaks_among(table, links.of(Grade.SURE)).assign(action=action)
    return _with_doubtful(sure, leaks_among(*_doubtful(table, links, Grade.SURE))).assign(
        kind="leak"
    )


def find_conflicts(table: pd.DataFrame, links: Links, policy: str) -> pd.DataFrame:
    """Images with a copy on their side, training or evaluation, that has none of their labels.

    `other_path` differs least; where the first is kept, it is the first by path that stays.
    """
    actions = {"keep_first": "dropped", "drop_all": "both dropped", "stop": "stop"}

    def conflicts_among(
        table: pd.DataFrame, links: Links, policies: tuple[str, str]
    ) -> pd.DataFrame:
        sides = []
        for rows, side_policy in zip(_sides(table, links), policies, strict=True):
            rule = unlike_one_that_stays if side_policy == "keep_first" else unlike
            conflicts = _as_findings(rows, rows, rule(_side(rows, links)), links)
            sides.append(conflicts.assign(action=actions.get(side_policy, "reported")))
        return _by_path(sides)

    sure = conflicts_among(table, links.of(Grade.SURE), (policy, "report"))
    near, below = _doubtful(table, links, Grade.SURE)
    every = conflicts_among(_left(near, sure), below, ("report", "report"))
    return _with_doubtful(sure, every).assign(kind="conflict")


def find_duplicates(table: pd.DataFrame, links: Links, policies: Mapping[str, str]) -> pd.DataFrame:
    """Images with a copy on their side that shares a label, is before them by path, and stays.

    Args:
        table: the rows that are left.
        links: of their images, and maybe of more.
        policies: `drop` or `report`, by what a copy is, `exact` or `near`.
    """
    dropped = {kind for kind, policy in policies.items() if policy == "drop"}

    def duplicates_among(table: pd.DataFrame, links: Links, dropped: set[str]) -> pd.DataFrame:
        sides = []
        for rows, goes in zip(_sides(table, links), (dropped, set()), strict=True):
            ends = alike_one_that_stays(_side(rows, links), goes)
            duplicates = _as_findings(rows, rows, ends, links)
            action = np.where(duplicates["copy"].isin(goes), "dropped", "reported")
            sides.append(duplicates.assign(action=action))
        return _by_path(sides)

    copies = duplicates_among(table, links.of(Grade.COPY), dropped)
    near, below = _doubtful(table, links, Grade.COPY)
    duplicates = _with_doubtful(copies, duplicates_among(_left(near, copies), below, set()))
    kind = duplicates["copy"] + " duplicate"
    return duplicates.assign(kind=kind, limit=duplicates["copy_limit"])


def _left(table: pd.DataFrame, findings: pd.DataFrame) -> pd.DataFrame:
    """The rows without what the findings drop: that is no copy to look at any more."""
    if table.empty:
        return table
    gone = findings.loc[findings["action"].isin(("dropped", "both dropped")), "image_path"]
    return table[~((table["split"] == "train") & table["image_path"].isin(gone))]


def _doubtful(table: pd.DataFrame, links: Links, grade: Grade) -> tuple[pd.DataFrame, Links]:
    """The rows with a picture that is near another, but not of that grade; such links alone."""
    below = links.below(grade)
    if below.near.empty:
        return table[:0], below
    pictures = links.pictures.loc[table["image_path"]].isin(below.near["picture"])
    return table[pictures.to_numpy()], below


def _with_doubtful(sure: pd.DataFrame, doubtful: pd.DataFrame) -> pd.DataFrame:
    """The finds, and those of images that have no sure one, which are reported."""
    if len(doubtful):
        doubtful = doubtful[~doubtful["image_path"].isin(sure["image_path"])]
    both = _by_path([sure.assign(sure=True), doubtful.assign(sure=False, action="reported")])
    return both.assign(limit=both["sure_limit"])


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


def _as_findings(
    rows: pd.DataFrame, others: pd.DataFrame, ends: Iterable[tuple[int, int]], links: Links
) -> pd.DataFrame:
    """The rows at each end, as findings without kind and action; `copy` is `exact` or `near`."""
    ends_P2 = np.array(list(ends), np.int64).reshape(-1, 2)
    one, two = (side.iloc[end] for side, end in zip((rows, others), ends_P2.T, strict=True))
    names = {"image_path": "other_path", "picture": "other"}
    two = two.rename(columns={"label": "other_label", "split": "other_split"} | names)
    pairs = pd.concat([part.reset_index(drop=True) for part in (one, two)], axis=1)
    pairs["copy"] = np.where(pairs["picture"] == pairs["other"], "exact", "near")
    near = pairs[["picture", "other"]].merge(links.near, how="left", on=["picture", "other"])
    equal = pairs["picture"] == pairs["other"]
    return pairs.assign(**{name: near[name].mask(equal, EQUAL[name]) for name in EQUAL})


def _by_path(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables).sort_values("image_path", kind="stable", ignore_index=True)
