"""Pictures that stand for what is missing: the same one under many labels."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from guie.curation.copies.evidence import Grade
from guie.curation.copies.links import Links
from guie.curation.copies.rules import EQUAL


def find_placeholders(table: pd.DataFrame, links: Links, labels_max: int) -> pd.DataFrame:
    """Images whose picture, or a copy of it beyond doubt, stands under more than `labels_max` labels.

    Labels count that have no class in common: `a`, `b` and `a|b` are two. The same picture under
    two or three is a conflict of labels; under more it says nothing of any of them.

    Returns:
        Findings; `other_path` is the first image of the placeholder under another label, `labels`
        how many there are. Training images are dropped, others reported.
    """
    rows = table[["image_path", "label", "split"]].drop_duplicates("image_path")
    rows = rows.assign(picture=links.pictures.loc[rows["image_path"]].to_numpy())
    rows = rows.sort_values("image_path", kind="stable")
    sure = links.of(Grade.SURE)
    faces = rows.drop_duplicates(["picture", "label"])  # one image of each label of a picture
    own = faces.groupby("picture").size()
    near = sure.near["other"].map(own).fillna(0).groupby(sure.near["picture"]).sum()
    many = own.index[own.add(near.reindex(own.index, fill_value=0)) > labels_max]
    faces_of = dict(iter(faces[faces["picture"].isin(_with_near(many, sure))].groupby("picture")))
    tables = []
    for picture, group in rows[rows["picture"].isin(many)].groupby("picture"):
        of_copies = [faces_of[near] for near in sure.beside.get(picture, ()) if near in faces_of]
        all_faces = pd.concat([faces_of[picture], *of_copies])
        labels = disjoint(all_faces["label"])
        if labels > labels_max:
            tables.append(_findings(group, all_faces, labels))
    if not tables:
        return pd.DataFrame()
    return pd.concat(tables).sort_values("image_path", kind="stable", ignore_index=True)


def _with_near(pictures: pd.Index, links: Links) -> set[int]:
    near = links.near.loc[links.near["picture"].isin(pictures), "other"]
    return {*pictures, *near}


def disjoint(labels: Iterable[str]) -> int:
    """How many labels, taken in order, have no class in common with those before them."""
    seen: set[str] = set()
    count = 0
    for label in labels:
        classes = label.split("|")
        count += seen.isdisjoint(classes)
        seen.update(classes)
    return count


def _findings(group: pd.DataFrame, faces: pd.DataFrame, labels: int) -> pd.DataFrame:
    """`group`: the images of one picture; `faces`: one of each label that it or a copy has."""
    one = faces.iloc[0]
    two = faces[faces["label"] != one["label"]].iloc[0]
    other = [two if label == one["label"] else one for label in group["label"]]
    return group.assign(
        kind="placeholder",
        other_path=[row["image_path"] for row in other],
        other_label=[row["label"] for row in other],
        other_split=[row["split"] for row in other],
        copy=["exact" if row["picture"] == group["picture"].iloc[0] else "near" for row in other],
        labels=labels,
        action=["dropped" if split == "train" else "reported" for split in group["split"]],
        **EQUAL,
    )
