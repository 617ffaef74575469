"""Rules for duplicates in a mix: placeholders, leaks, label conflicts, and which copy stays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.curation.duplicates.findings import dropped
from guie.curation.duplicates.limits import Grade
from guie.curation.duplicates.links import Links

Labels = frozenset[str]
# What is measured of a pair of equal pictures
EQUAL = {"distance": 0, "similarity": 1.0, "difference": 0.0, "said": False}
EQUAL |= {"sure_limit": 0.0, "copy_limit": 0.0}
# Policies that act; any other reports
LEAK_ACTIONS = {"stop": "stop", "drop_train": "dropped", "declared": "declared"}
CONFLICT_ACTIONS = {"keep_first": "dropped", "drop_all": "both dropped", "stop": "stop"}


class Side(NamedTuple):
    """The images of one side, training or evaluation, sorted by path."""

    rows: pd.DataFrame  # image_path, label, split, picture
    pictures: list[int]
    labels: list[Labels]
    beside: Mapping[int, list[int]]  # near pictures, the most similar first

    def near(self, picture: int) -> tuple[int, ...]:
        """Return the picture and those near it."""
        return picture, *self.beside.get(picture, ())

    def images(self) -> Iterator[tuple[int, int, Labels]]:
        """Yield the position, the picture and the labels of each image."""
        return zip(range(len(self.labels)), self.pictures, self.labels, strict=True)


def across(side: Side, other: Side) -> Iterator[tuple[int, int]]:
    """Yield images and the most similar copy on the other side that is not the image itself."""
    images: dict[int, list[int]] = defaultdict(list)  # of the other side, by picture
    for image, picture, _ in other.images():
        images[picture].append(image)
    paths, others = (one.rows["image_path"].tolist() for one in (side, other))

    @cache
    def copies(picture: int) -> list[int]:
        """Return the first two, because one may be the image itself."""
        found = chain.from_iterable(images.get(near, ()) for near in side.near(picture))
        return list(islice(found, 2))

    for image, picture, _ in side.images():
        for copy in copies(picture):
            if others[copy] != paths[image]:
                yield image, copy
                break


def unlike(side: Side) -> Iterator[tuple[int, int]]:
    """Yield images and the most similar of their copies that share no label with them."""
    faces: dict[int, dict[Labels, int]] = {}  # picture -> labels -> its first image with them
    for image, picture, labels in side.images():
        faces.setdefault(picture, {}).setdefault(labels, image)

    @cache
    def first_unlike(picture: int, labels: Labels) -> int | None:
        every = chain.from_iterable(faces.get(near, {}).items() for near in side.near(picture))
        return next((image for known, image in every if labels.isdisjoint(known)), None)

    for image, picture, labels in side.images():
        if (other := first_unlike(picture, labels)) is not None:
            yield image, other


def unlike_one_that_stays(side: Side) -> Iterator[tuple[int, int]]:
    """Yield images to drop, each with the first earlier kept copy that shares no label with it."""
    # Kept images of a picture and its near ones: labels -> the first image with them
    kept: dict[int, dict[Labels, int]] = defaultdict(dict)
    for image, picture, labels in side.images():
        found = (one for known, one in kept[picture].items() if labels.isdisjoint(known))
        if (other := next(found, None)) is not None:
            yield image, other
        else:
            for near in side.near(picture):
                kept[near].setdefault(labels, image)


def alike_one_that_stays(side: Side, drops: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield images and the first earlier kept copy that shares a label with them.

    If the kind of copy (`exact` or `near`) is in `drops`, the image is not kept, so later images
    are not compared with it. The dropped kind is tried first, then exact copies.
    """
    beside = {picture: set(others) for picture, others in side.beside.items()}
    firsts: dict[str, dict[int, int]] = defaultdict(dict)  # of kept images, by label and picture
    order = sorted(("exact", "near"), key=lambda kind: kind not in drops)
    for image, picture, labels in side.images():
        for kind in order:
            pictures = {picture} if kind == "exact" else beside.get(picture, set())
            found = (
                firsts[label][near] for label in labels for near in pictures & firsts[label].keys()
            )
            if (other := min(found, default=None)) is not None:
                yield image, other
                break
        if other is None or kind not in drops:
            for label in labels:
                firsts[label].setdefault(picture, image)


def find_placeholders(table: pd.DataFrame, links: Links, labels_max: int) -> pd.DataFrame:
    """Find images whose picture, with its certain copies, has more than `labels_max` labels.

    Only labels without a common class count: `a`, `b` and `a|b` are two. A picture with two or
    three labels is a label conflict; with more labels it is evidence for none of them.

    Returns:
        Findings; `other_path` is the first image of the placeholder with another label, `labels`
        the number of labels. Training images are dropped, others reported.
    """
    rows = table[["image_path", "label", "split"]].drop_duplicates("image_path")
    rows = rows.assign(picture=links.pictures.loc[rows["image_path"]].to_numpy())
    rows = rows.sort_values("image_path", kind="stable")
    sure = links.of(Grade.SURE)
    faces = rows.drop_duplicates(["picture", "label"])  # one image of each label of a picture
    own = faces.groupby("picture").size()
    near = sure.near["other"].map(own).fillna(0).groupby(sure.near["picture"]).sum()
    many = own.index[own.add(near.reindex(own.index, fill_value=0)) > labels_max]
    wanted = {*many, *sure.near.loc[sure.near["picture"].isin(many), "other"]}
    faces_of = dict(iter(faces[faces["picture"].isin(wanted)].groupby("picture")))
    found = []
    for picture, group in rows[rows["picture"].isin(many)].groupby("picture"):
        pictures = (picture, *sure.beside.get(picture, ()))
        all_faces = pd.concat([faces_of[near] for near in pictures if near in faces_of])
        labels = disjoint(all_faces["label"])
        if labels > labels_max:
            found.append(_placeholder(group, all_faces, labels))
    return _by_path(found) if found else pd.DataFrame()


def disjoint(labels: Iterable[str]) -> int:
    """Count the labels that share no class with any label before them."""
    seen: set[str] = set()
    count = 0
    for label in labels:
        classes = label.split("|")
        count += seen.isdisjoint(classes)
        seen.update(classes)
    return count


def _placeholder(group: pd.DataFrame, faces: pd.DataFrame, labels: int) -> pd.DataFrame:
    """Return the findings of a picture.

    `group` holds its images, `faces` one image for each label of the picture or a copy.
    """
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


def find_leaks(table: pd.DataFrame, links: Links, policy: str) -> pd.DataFrame:
    """Find training images that are copies of a val or test image; `other_path` differs least.

    An image that is in both train and the index (as in Met) is not a copy of itself.
    """

    def leaks_among(table: pd.DataFrame, links: Links, certain: bool) -> pd.DataFrame:
        trained, held = _sides(table, links)
        found = _as_findings(trained, held, across(trained, held), links)
        return found.assign(action=LEAK_ACTIONS[policy])

    return _certain_and_doubtful(table, links, Grade.SURE, leaks_among).assign(kind="leak")


def find_conflicts(table: pd.DataFrame, links: Links, policy: str) -> pd.DataFrame:
    """Find images with a copy on their own side (training or evaluation) that shares no label.

    `other_path` is the copy that differs least, or with `keep_first` the first kept copy by path.
    """

    def conflicts_among(table: pd.DataFrame, links: Links, certain: bool) -> pd.DataFrame:
        policies = (policy if certain else "report", "report")
        found = []
        for side, own in zip(_sides(table, links), policies, strict=True):
            rule = unlike_one_that_stays if own == "keep_first" else unlike
            conflicts = _as_findings(side, side, rule(side), links)
            found.append(conflicts.assign(action=CONFLICT_ACTIONS.get(own, "reported")))
        return _by_path(found)

    return _certain_and_doubtful(table, links, Grade.SURE, conflicts_among).assign(kind="conflict")


def find_duplicates(table: pd.DataFrame, links: Links, policies: Mapping[str, str]) -> pd.DataFrame:
    """Find images with a kept copy on their own side that shares a label and precedes them by path.

    Args:
        table: the remaining rows.
        links: links between their images; may include more images.
        policies: `drop` or `report` for each kind of copy, `exact` and `near`.
    """
    dropped_kinds = {kind for kind, policy in policies.items() if policy == "drop"}

    def duplicates_among(table: pd.DataFrame, links: Links, certain: bool) -> pd.DataFrame:
        found = []
        of_sides = (dropped_kinds if certain else set[str](), set[str]())
        for side, drops in zip(_sides(table, links), of_sides, strict=True):
            duplicates = _as_findings(side, side, alike_one_that_stays(side, drops), links)
            action = np.where(duplicates["copy"].isin(drops), "dropped", "reported")
            found.append(duplicates.assign(action=action))
        return _by_path(found)

    duplicates = _certain_and_doubtful(table, links, Grade.COPY, duplicates_among)
    kind = duplicates["copy"] + " duplicate"
    return duplicates.assign(kind=kind, limit=duplicates["copy_limit"])


def _certain_and_doubtful(
    table: pd.DataFrame,
    links: Links,
    grade: Grade,
    among: Callable[[pd.DataFrame, Links, bool], pd.DataFrame],
) -> pd.DataFrame:
    """Return the findings by links of at least the grade; doubtful ones, as reported, for other images.

    Args:
        among: takes rows, links and whether they are certain; returns findings without kind.
    """
    certain, below = among(table, links.of(grade), True), links.below(grade)
    # Images that go need no further findings
    goes = (table["split"] == "train") & table["image_path"].isin(dropped(certain))
    pictures = links.pictures.loc[table["image_path"]].isin(below.near["picture"]).to_numpy()
    doubtful = among(table[pictures & ~goes], below, False)
    doubtful = doubtful[~doubtful["image_path"].isin(certain["image_path"])]
    both = _by_path([certain.assign(sure=True), doubtful.assign(sure=False, action="reported")])
    return both.assign(limit=both["sure_limit"])


def _sides(table: pd.DataFrame, links: Links) -> tuple[Side, Side]:
    """Return the training and evaluation images with copies: each once, by path, with picture."""
    rows = table[["image_path", "label", "split"]]
    rows = rows.assign(picture=links.pictures.loc[rows["image_path"]].to_numpy())
    copied = rows["picture"].duplicated(keep=False) | rows["picture"].isin(links.near["picture"])
    rows = rows[copied].sort_values("image_path", kind="stable")
    sets = {label: frozenset(label.split("|")) for label in rows["label"].unique()}
    sides = []
    for here in (rows["split"] == "train", rows["split"] != "train"):
        own = rows[here].drop_duplicates("image_path").reset_index(drop=True)
        labels = own["label"].map(sets).tolist()
        sides.append(Side(own, own["picture"].tolist(), labels, links.beside))
    return sides[0], sides[1]


def _as_findings(
    side: Side, others: Side, ends: Iterable[tuple[int, int]], links: Links
) -> pd.DataFrame:
    """Return pairs of images as findings without kind and action; `copy` is `exact` or `near`."""
    ends_P2 = np.array(list(ends), np.int64).reshape(-1, 2)
    one, two = side.rows.iloc[ends_P2[:, 0]], others.rows.iloc[ends_P2[:, 1]]
    names = {"image_path": "other_path", "picture": "other"}
    two = two.rename(columns={"label": "other_label", "split": "other_split"} | names)
    pairs = pd.concat([rows.reset_index(drop=True) for rows in (one, two)], axis=1)
    equal = pairs["picture"] == pairs["other"]
    near = pairs[["picture", "other"]].merge(links.near, how="left", on=["picture", "other"])
    values = {name: near[name].mask(equal, EQUAL[name]) for name in EQUAL}
    return pairs.assign(copy=np.where(equal, "exact", "near"), **values)


def _by_path(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables).sort_values("image_path", kind="stable", ignore_index=True)
