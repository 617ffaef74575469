"""For an image that is a copy of others, the one of them that shows it.

One witness an image: pairs grow with the square of a group. Where labels are single, time and
memory are linear in images and near pictures. Of several labels, those that most images share make
`Unlike` go through every set of labels that the near pictures have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

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
