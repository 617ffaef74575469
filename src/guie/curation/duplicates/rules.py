"""Rules for duplicates in a mix: placeholders, leaks, label conflicts, and which copy stays."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.curation.duplicates.limits import Grade
from guie.curation.duplicates.links import Links
from guie.curation.findings import dropped

Labels = frozenset[str]
# What is measured of a pair of equal pictures
EQUAL = {"distance": 0, "similarity": 1.0, "difference": 0.0, "confirmed": False}
EQUAL |= {"sure_limit": 0.0, "copy_limit": 0.0}
KINDS = ("exact", "near")  # of copies
OTHER = {"image_path": "other_path", "label": "other_label", "split": "other_split"}
# Policies that act; any other reports
LEAK_ACTIONS = {"stop": "stop", "drop_train": "dropped", "declared": "declared"}
CONFLICT_ACTIONS = {"keep_first": "dropped", "drop_all": "both dropped", "stop": "stop"}


class Side(NamedTuple):
    """The images of one side, training or evaluation, sorted by path."""

    rows: pd.DataFrame  # image_path, label, split, picture
    labels: list[Labels]
    links: Links

    def images(self) -> Iterator[tuple[int, int, Labels, list[int]]]:
        """Yield position, picture and labels of each image, and its own and near pictures, nearest first."""
        pictures = self.rows["picture"].tolist()
        for image, (picture, labels) in enumerate(zip(pictures, self.labels, strict=True)):
            yield image, picture, labels, [picture, *self.links.neighbours.get(picture, [])]


Ends = Iterator[tuple[int, int]]  # positions of an image and of a copy of it
# Training side, evaluation side, and whether their links are certain -> tables of `_pairs`
Rule = Callable[[Side, Side, bool], Iterable[pd.DataFrame]]


def across(side: Side, other: Side) -> Ends:
    """Yield images and the most similar copy on the other side that is not the image itself."""
    own, others = side.rows["image_path"].tolist(), other.rows["image_path"].tolist()
    members: dict[int, list[int]] = defaultdict(list)  # by picture
    for copy, picture, *_ in other.images():
        members[picture].append(copy)
    for image, _, _, copies in side.images():
        every = chain.from_iterable(members.get(near, ()) for near in copies)
        copy = next((one for one in every if others[one] != own[image]), -1)
        if copy >= 0:
            yield image, copy


def unlike(side: Side) -> Ends:
    """Yield images and the most similar of their copies that share no label with them."""
    faces: dict[int, dict[Labels, int]] = {}  # picture -> labels -> its first image with them
    for image, picture, labels, _ in side.images():
        faces.setdefault(picture, {}).setdefault(labels, image)
    for image, _, labels, copies in side.images():
        every = chain.from_iterable(faces.get(near, {}).items() for near in copies)
        other = next((one for known, one in every if labels.isdisjoint(known)), None)
        if other is not None:
            yield image, other


def unlike_kept(side: Side) -> Ends:
    """Yield images to drop, each with the first earlier kept copy that shares no label with it."""
    # Kept images of a picture and its near ones: labels -> the first image with them
    kept: dict[int, dict[Labels, int]] = defaultdict(dict)
    for image, picture, labels, copies in side.images():
        found = (one for known, one in kept[picture].items() if labels.isdisjoint(known))
        if (other := next(found, None)) is not None:
            yield image, other
        else:
            for near in copies:
                kept[near].setdefault(labels, image)


def alike_kept(side: Side, drops: Collection[str]) -> Ends:
    """Yield images and the first earlier kept copy that shares a label with them.

    If the kind of copy (`exact` or `near`) is in `drops`, the image is not kept, so later images
    are not compared with it. The dropped kind is tried first, then exact copies.
    """
    firsts: dict[str, dict[int, int]] = defaultdict(dict)  # of kept images, by label and picture
    order = sorted(KINDS, key=lambda kind: kind not in drops)
    for image, picture, labels, copies in side.images():
        for kind in order:
            pictures = {picture} if kind == "exact" else set(copies[1:])
            kept = (firsts[label] for label in labels)
            found = (own[near] for own in kept for near in pictures & own.keys())
            if (other := min(found, default=None)) is not None:
                yield image, other
                break
        if other is None or kind not in drops:
            for label in labels:
                firsts[label].setdefault(picture, image)


def find_placeholders(table: pd.DataFrame, links: Links, labels_max: int) -> pd.DataFrame:
    """Find images whose picture, with its certain copies, has more than `labels_max` labels.

    Only labels without a common class count: `a`, `b` and `a|b` are two. A picture with two or
    three labels is a label conflict; with more labels it is evidence for none of them. In the findings,
    `other_path` is the first image of the placeholder with another label, `labels` the number of labels.
    """
    rows = _with_pictures(table.drop_duplicates("image_path"), links)
    # Each picture with itself first, then with those near it, the most similar first
    own = pd.DataFrame({"picture": rows["picture"].unique()})
    near = pd.concat([own.assign(other=own["picture"]), links.of(Grade.SURE).near[[*own, "other"]]])
    faces = rows.drop_duplicates(["picture", "label"])  # one image of each label of a picture
    # Labels of a picture and its copies, at most
    number = near["other"].map(faces.groupby("picture").size()).groupby(near["picture"]).sum()
    near = near[near["picture"].isin(number.index[number > labels_max])]
    faces = near.merge(faces.rename(columns={"picture": "other"}), on="other")
    count = faces.groupby("picture")["label"].agg(disjoint)
    count = count[count > labels_max].rename("labels")
    found = rows.merge(count, left_on="picture", right_index=True)
    if found.empty:
        return pd.DataFrame()
    # An image has one of the first two labels at most, so the other one shows the contradiction.
    firsts = faces.rename(columns=OTHER).drop_duplicates(["picture", "other_label"])
    found = found.merge(firsts.groupby("picture").head(2), on="picture")
    found = found[found["label"] != found["other_label"]].drop_duplicates("image_path")
    return found.assign(
        kind="placeholder",
        copy=np.where(found["other"] == found["picture"], "exact", "near"),
        action=np.where(found["split"] == "train", "dropped", "reported"),
        **EQUAL,
    )


def disjoint(labels: Iterable[str]) -> int:
    """Count the labels that share no class with any label before them."""
    seen: set[str] = set()
    count = 0
    for label in labels:
        classes = label.split("|")
        count += seen.isdisjoint(classes)
        seen.update(classes)
    return count


def find_leaks(table: pd.DataFrame, links: Links, policy: str) -> pd.DataFrame:
    """Find training images that are copies of a val or test image; `other_path` differs least.

    An image that is in both train and the index (as in Met) is not a copy of itself.
    """

    def leaks(trained: Side, held: Side, certain: bool) -> Iterator[pd.DataFrame]:
        yield _pairs(trained, held, across(trained, held), LEAK_ACTIONS[policy])

    return _findings(table, links, Grade.SURE, leaks).assign(kind="leak")


def find_conflicts(table: pd.DataFrame, links: Links, policy: str) -> pd.DataFrame:
    """Find images with a copy on their own side (training or evaluation) that shares no label.

    `other_path` is the copy that differs least, or with `keep_first` the first kept copy by path.
    """

    def conflicts(trained: Side, held: Side, certain: bool) -> Iterator[pd.DataFrame]:
        first = policy == "keep_first" and certain
        own = unlike_kept(trained) if first else unlike(trained)
        yield _pairs(trained, trained, own, CONFLICT_ACTIONS.get(policy, "reported"))
        yield _pairs(held, held, unlike(held), "reported")

    return _findings(table, links, Grade.SURE, conflicts).assign(kind="conflict")


def find_duplicates(table: pd.DataFrame, links: Links, policies: Mapping[str, str]) -> pd.DataFrame:
    """Find images with a kept copy on their own side that shares a label and precedes them by path.

    `policies` has `drop` or `report` for each kind of copy, `exact` and `near`.
    """
    drops = [kind for kind, policy in policies.items() if policy == "drop"]

    def duplicates(trained: Side, held: Side, certain: bool) -> Iterator[pd.DataFrame]:
        own = alike_kept(trained, drops if certain else ())
        found = _pairs(trained, trained, own, "reported")
        yield found.assign(action=np.where(found["copy"].isin(drops), "dropped", "reported"))
        yield _pairs(held, held, alike_kept(held, ()), "reported")

    found = _findings(table, links, Grade.COPY, duplicates)
    return found.assign(kind=found["copy"] + " duplicate", limit=found["copy_limit"])


def _findings(table: pd.DataFrame, links: Links, grade: Grade, rule: Rule) -> pd.DataFrame:
    """Return the findings by links of at least the grade; doubtful ones, as reported, for other images."""

    def found(table: pd.DataFrame, links: Links, certain: bool) -> pd.DataFrame:
        trained, held = _sides(table, links)
        return pd.concat(rule(trained, held, certain)).assign(sure=certain)

    certain, below = found(table, links.of(grade), True), links.of(grade, below=True)
    # Images that go need no further findings
    goes = (table["split"] == "train") & table["image_path"].isin(dropped(certain))
    pictures = links.pictures.loc[table["image_path"]].isin(below.near["picture"]).to_numpy()
    doubtful = found(table[pictures & ~goes], below, False).assign(action="reported")
    doubtful = doubtful[~doubtful["image_path"].isin(certain["image_path"])]
    both = pd.concat([certain, doubtful]).assign(limit=lambda rows: rows["sure_limit"])
    return both.sort_values("image_path", kind="stable", ignore_index=True)


def _with_pictures(table: pd.DataFrame, links: Links) -> pd.DataFrame:
    """Return what the rules need of each row, with the number of its picture, sorted by path."""
    rows = table[["image_path", "label", "split"]]
    rows = rows.assign(picture=links.pictures.loc[rows["image_path"]].to_numpy())
    return rows.sort_values("image_path", kind="stable")


def _sides(table: pd.DataFrame, links: Links) -> list[Side]:
    """Return the training and evaluation images with copies: each once, by path, with picture."""
    rows = _with_pictures(table, links)
    copied = rows["picture"].duplicated(keep=False) | rows["picture"].isin(links.near["picture"])
    rows = rows[copied]
    sets = {label: frozenset(label.split("|")) for label in rows["label"].unique()}
    sides = []
    for here in (rows["split"] == "train", rows["split"] != "train"):
        own = rows[here].drop_duplicates("image_path").reset_index(drop=True)
        sides.append(Side(own, own["label"].map(sets).tolist(), links))
    return sides


def _pairs(side: Side, others: Side, ends: Ends, action: str) -> pd.DataFrame:
    """Return images of one side and copies of them as findings without a kind."""
    ends_P2 = np.array(list(ends), np.int64).reshape(-1, 2)
    one, two = side.rows.iloc[ends_P2[:, 0]], others.rows.iloc[ends_P2[:, 1]]
    two = two.rename(columns=OTHER | {"picture": "other"})
    found = pd.concat([rows.reset_index(drop=True) for rows in (one, two)], axis=1)
    equal = found["picture"] == found["other"]
    near = found[["picture", "other"]].merge(side.links.near, how="left", on=["picture", "other"])
    values = {name: near[name].mask(equal, EQUAL[name]) for name in EQUAL}
    return found.assign(copy=np.where(equal, "exact", "near"), action=action, **values)
