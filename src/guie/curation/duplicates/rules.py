"""What duplicates mean for a mix: placeholders, leaks, label conflicts, and which copy stays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.curation.duplicates.candidates import Links
from guie.curation.duplicates.evidence import Grade

Labels = frozenset[str]


class Side(NamedTuple):
    """The images of one side, training or evaluation, in the order of their paths."""

    paths: list[str]
    pictures: list[int]
    labels: list[Labels]
    beside: Mapping[int, list[int]]  # near pictures, the most alike first


class Unlike:
    """Finds the first of a sequence of images that has no label in common with a given one.

    What it has passed over it does not look at again: the images are gone through once for each
    set of labels that the first ones have in common with what is asked. Of single labels there are
    two such sets, none at all and the label of the first image.
    """

    def __init__(self, images: Iterable[tuple[Labels, int]] = ()):
        self.images = iter(images)
        self.seen: list[tuple[Labels, int]] = []  # may be added to once `images` are at an end
        self.passed: dict[Labels, int] = {}

    def find(self, labels: Labels) -> int | None:
        """The first image that has none of `labels`."""
        met: Labels = frozenset()
        while (found := self._first_without(met)) is not None:
            common = labels & found[0]
            if not common:
                return found[1]
            met |= common
        return None

    def _first_without(self, labels: Labels) -> tuple[Labels, int] | None:
        place = self.passed.get(labels, 0)
        while place < len(self.seen) or self._read():
            if labels.isdisjoint(self.seen[place][0]):
                break
            place += 1
        self.passed[labels] = place
        return self.seen[place] if place < len(self.seen) else None

    def _read(self) -> bool:
        image = next(self.images, None)
        if image is not None:
            self.seen.append(image)
        return image is not None


class Staying:
    """The images that stay: the first of each picture and label."""

    def __init__(self, beside: Mapping[int, list[int]]):
        self.beside = {picture: set(others) for picture, others in beside.items()}
        self.firsts: dict[str, dict[int, int]] = defaultdict(dict)  # label -> picture -> image

    def add(self, image: int, picture: int, labels: Labels) -> None:
        """Note an image; those before it are noted already."""
        for label in labels:
            self.firsts[label].setdefault(picture, image)

    def exact(self, picture: int, labels: Labels) -> int | None:
        """The first image of the picture that has one of the labels."""
        firsts = (self.firsts[label].get(picture) for label in labels)
        return min((image for image in firsts if image is not None), default=None)

    def near(self, picture: int, labels: Labels) -> int | None:
        """The first image of a near picture that has one of the labels."""
        others = self.beside.get(picture)
        if others is None:
            return None
        firsts = ((self.firsts[label], others & self.firsts[label].keys()) for label in labels)
        return min((first[other] for first, near in firsts for other in near), default=None)


def across(side: Side, other: Side) -> Iterator[tuple[int, int]]:
    """Images and the most alike of their copies on the other side, which is not the image itself."""
    images: dict[int, list[int]] = defaultdict(list)  # of the other side, by picture
    for image, picture in enumerate(other.pictures):
        images[picture].append(image)
    reach: dict[int, list[int]] = {}  # the first two, for one may be the image itself
    for image, (path, picture) in enumerate(zip(side.paths, side.pictures, strict=True)):
        if picture not in reach:
            pictures = (picture, *side.beside.get(picture, ()))
            copies = chain.from_iterable(images.get(near, ()) for near in pictures)
            reach[picture] = list(islice(copies, 2))
        for copy in reach[picture]:
            if other.paths[copy] != path:
                yield image, copy
                break


def unlike(side: Side) -> Iterator[tuple[int, int]]:
    """Images and, of their copies that have no label in common with them, the most alike."""
    faces: dict[int, dict[Labels, int]] = {}  # of each picture, the first image of each label
    for image, (picture, labels) in enumerate(zip(side.pictures, side.labels, strict=True)):
        faces.setdefault(picture, {}).setdefault(labels, image)
    found = {}
    for picture, own in faces.items():
        near = (faces[other].items() for other in side.beside.get(picture, ()) if other in faces)
        search = Unlike(chain(own.items(), chain.from_iterable(near)))
        found[picture] = {labels: search.find(labels) for labels in own}
    for image, (picture, labels) in enumerate(zip(side.pictures, side.labels, strict=True)):
        if (other := found[picture][labels]) is not None:
            yield image, other


def unlike_one_that_stays(side: Side) -> Iterator[tuple[int, int]]:
    """Images that go, and the first copy without a common label that is before them and stays."""
    reach: dict[int, Unlike] = defaultdict(Unlike)  # those that stay, of a picture and near it
    stay: set[tuple[int, Labels]] = set()
    for image, (picture, labels) in enumerate(zip(side.pictures, side.labels, strict=True)):
        if (other := reach[picture].find(labels)) is not None:
            yield image, other
        elif (picture, labels) not in stay:
            stay.add((picture, labels))
            for near in (picture, *side.beside.get(picture, ())):
                reach[near].seen.append((labels, image))


def alike_one_that_stays(side: Side, dropped: Collection[str]) -> Iterator[tuple[int, int]]:
    """Images, and the first copy with a common label that is before them and stays.

    An image goes, and is no such copy to those after it, where the two are copies of a kind that
    is in `dropped`, of `exact` and `near`. That kind comes first, then the exact copies.
    """
    stay = Staying(side.beside)
    look = {"exact": stay.exact, "near": stay.near}
    order = sorted(look, key=lambda kind: kind not in dropped)
    for image, (picture, labels) in enumerate(zip(side.pictures, side.labels, strict=True)):
        for kind in order:
            if (other := look[kind](picture, labels)) is not None:
                yield image, other
                break
        if other is None or kind not in dropped:
            stay.add(image, picture, labels)


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
