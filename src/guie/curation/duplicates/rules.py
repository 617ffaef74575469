"""Rules for duplicates in a mix: placeholders, leaks, label conflicts, and which copy stays."""

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
    """The images of one side, training or evaluation, sorted by path."""

    paths: list[str]
    pictures: list[int]
    labels: list[Labels]
    beside: Mapping[int, list[int]]  # near pictures, the most similar first


class Unlike:
    """Find the first image of a sequence that shares no label with a query.

    Images that were skipped are not examined again. The sequence is scanned once for each set of
    labels that its first images share with the queries. With single labels there are two such
    sets: the empty set and the label of the first image.
    """

    def __init__(self, images: Iterable[tuple[Labels, int]] = ()):
        self.images = iter(images)
        self.seen: list[tuple[Labels, int]] = []  # may grow once `images` is exhausted
        self.passed: dict[Labels, int] = {}

    def find(self, labels: Labels) -> int | None:
        """Return the first image that has none of `labels`."""
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
    """The images that are kept: the first of each picture and label."""

    def __init__(self, beside: Mapping[int, list[int]]):
        self.beside = {picture: set(others) for picture, others in beside.items()}
        self.firsts: dict[str, dict[int, int]] = defaultdict(dict)  # label -> picture -> image

    def add(self, image: int, picture: int, labels: Labels) -> None:
        """Add an image; images must be added in order."""
        for label in labels:
            self.firsts[label].setdefault(picture, image)

    def exact(self, picture: int, labels: Labels) -> int | None:
        """Return the first image of the picture that has one of the labels."""
        firsts = (self.firsts[label].get(picture) for label in labels)
        return min((image for image in firsts if image is not None), default=None)

    def near(self, picture: int, labels: Labels) -> int | None:
        """Return the first image of a near picture that has one of the labels."""
        others = self.beside.get(picture)
        if others is None:
            return None
        firsts = ((self.firsts[label], others & self.firsts[label].keys()) for label in labels)
        return min((first[other] for first, near in firsts for other in near), default=None)


def across(side: Side, other: Side) -> Iterator[tuple[int, int]]:
    """Yield images and the most similar copy on the other side that is not the image itself."""
    images: dict[int, list[int]] = defaultdict(list)  # of the other side, by picture
    for image, picture in enumerate(other.pictures):
        images[picture].append(image)
    reach: dict[int, list[int]] = {}  # the first two, because one may be the image itself
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
    """Yield images and the most similar of their copies that share no label with them."""
    faces: dict[int, dict[Labels, int]] = {}  # picture -> labels -> its first image with them
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
    """Yield images to drop, each with the first earlier kept copy that shares no label with it."""
    reach: dict[int, Unlike] = defaultdict(Unlike)  # kept images of a picture and its near ones
    stay: set[tuple[int, Labels]] = set()
    for image, (picture, labels) in enumerate(zip(side.pictures, side.labels, strict=True)):
        if (other := reach[picture].find(labels)) is not None:
            yield image, other
        elif (picture, labels) not in stay:
            stay.add((picture, labels))
            for near in (picture, *side.beside.get(picture, ())):
                reach[near].seen.append((labels, image))


def alike_one_that_stays(side: Side, dropped: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield images and the first earlier kept copy that shares a label with them.

    If the kind of copy (`exact` or `near`) is in `dropped`, the image is not kept, so later images
    are not compared with it. The dropped kind is tried first, then exact copies.
    """
    stay = Staying(side.beside)
    find = {"exact": stay.exact, "near": stay.near}
    order = sorted(find, key=lambda kind: kind not in dropped)
    for image, (picture, labels) in enumerate(zip(side.pictures, side.labels, strict=True)):
        for kind in order:
            if (other := find[kind](picture, labels)) is not None:
                yield image, other
                break
        if other is None or kind not in dropped:
            stay.add(image, picture, labels)


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
    """Count the labels that share no class with any label before them."""
    seen: set[str] = set()
    count = 0
    for label in labels:
        classes = label.split("|")
        count += seen.isdisjoint(classes)
        seen.update(classes)
    return count


def _findings(group: pd.DataFrame, faces: pd.DataFrame, labels: int) -> pd.DataFrame:
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


EQUAL = {"distance": 0, "similarity": 1.0, "difference": 0.0, "said": False}
EQUAL |= {"sure_limit": 0.0, "copy_limit": 0.0}


def find_leaks(table: pd.DataFrame, links: Links, policy: str) -> pd.DataFrame:
    """Find training images that are copies of a val or test image; `other_path` differs least.

    An image that is in both train and the index (as in Met) is not a copy of itself.
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
    """Find images with a copy on their own side (training or evaluation) that shares no label.

    `other_path` is the copy that differs least, or with `keep_first` the first kept copy by path.
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
    """Find images with a kept copy on their own side that shares a label and precedes them by path.

    Args:
        table: the remaining rows.
        links: links between their images; may include more images.
        policies: `drop` or `report` for each kind of copy, `exact` and `near`.
    """
    dropped = {kind for kind, policy in policies.items() if policy == "drop"}

    def duplicates_among(table: pd.DataFrame, links: Links, dropped: set[str]) -> pd.DataFrame:
        sides = []
        for rows, drops in zip(_sides(table, links), (dropped, set()), strict=True):
            ends = alike_one_that_stays(_side(rows, links), drops)
            duplicates = _as_findings(rows, rows, ends, links)
            action = np.where(duplicates["copy"].isin(drops), "dropped", "reported")
            sides.append(duplicates.assign(action=action))
        return _by_path(sides)

    copies = duplicates_among(table, links.of(Grade.COPY), dropped)
    near, below = _doubtful(table, links, Grade.COPY)
    duplicates = _with_doubtful(copies, duplicates_among(_left(near, copies), below, set()))
    kind = duplicates["copy"] + " duplicate"
    return duplicates.assign(kind=kind, limit=duplicates["copy_limit"])


def _left(table: pd.DataFrame, findings: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that the findings do not drop; dropped images need no further checks."""
    if table.empty:
        return table
    gone = findings.loc[findings["action"].isin(("dropped", "both dropped")), "image_path"]
    return table[~((table["split"] == "train") & table["image_path"].isin(gone))]


def _doubtful(table: pd.DataFrame, links: Links, grade: Grade) -> tuple[pd.DataFrame, Links]:
    """Return only the links below that grade, and the rows whose pictures have one."""
    below = links.below(grade)
    if below.near.empty:
        return table[:0], below
    pictures = links.pictures.loc[table["image_path"]].isin(below.near["picture"])
    return table[pictures.to_numpy()], below


def _with_doubtful(sure: pd.DataFrame, doubtful: pd.DataFrame) -> pd.DataFrame:
    """Add doubtful findings, as reported, for images without a sure finding."""
    if len(doubtful):
        doubtful = doubtful[~doubtful["image_path"].isin(sure["image_path"])]
    both = _by_path([sure.assign(sure=True), doubtful.assign(sure=False, action="reported")])
    return both.assign(limit=both["sure_limit"])


def _sides(table: pd.DataFrame, links: Links) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the training and evaluation images with copies: each once, by path, with picture."""
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
    """Return pairs of rows as findings without kind and action; `copy` is `exact` or `near`."""
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
