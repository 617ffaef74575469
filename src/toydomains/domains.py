"""The ten domains by name, and the generation of a class from integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from toydomains.apparel import Garment, view_garment
from toydomains.artwork import Painting, view_painting
from toydomains.cars import Car, view_car
from toydomains.dishes import Dish, view_dish
from toydomains.furniture import Furniture, view_furniture
from toydomains.illustrations import Character, view_character
from toydomains.kit.photo import View
from toydomains.kit.subject import Subject
from toydomains.landmarks import Landmark, view_landmark
from toydomains.packages import Package, view_package
from toydomains.storefronts import Storefront, view_storefront
from toydomains.toys import Toy, view_toy


class Domain(NamedTuple):
    """The class type of a domain, and the function that takes a picture of a class.

    It is `view(subject, rng, role)`; `role` is `train`, `query`, `index` or `both`.
    """

    spec: type[Subject]
    view: Callable[[Any, np.random.Generator, str], View]


DOMAINS: dict[str, Domain] = {
    "storefronts": Domain(Storefront, view_storefront),
    "packages": Domain(Package, view_package),
    "apparel": Domain(Garment, view_garment),
    "cars": Domain(Car, view_car),
    "furniture": Domain(Furniture, view_furniture),
    "landmarks": Domain(Landmark, view_landmark),
    "toys": Domain(Toy, view_toy),
    "illustrations": Domain(Character, view_character),
    "dishes": Domain(Dish, view_dish),
    "artwork": Domain(Painting, view_painting),
}
PARTS = ("benchmark", "pretrain")


def generator(seed: int, part: str, domain: str, *numbers: int) -> np.random.Generator:
    """Return the generator of a class (its index) or of a view (class index, 1 + view index)."""
    return np.random.default_rng([seed, crc32(part.encode()), crc32(domain.encode()), *numbers])


def subject(seed: int, part: str, domain: str, index: int) -> Subject:
    """Return class number `index` of a domain; every odd one is the sister of the one before it.

    The hash of a class's phrase decides its part, so the parts share no description of a class for any
    seeds.
    """
    rng = generator(seed, part, domain, index)
    if index % 2:
        sister = _sister(rng, part, subject(seed, part, domain, index - 1))
        if sister is not None:
            return sister
    while True:
        candidate = DOMAINS[domain].spec.sample(rng)
        if _part_of(candidate) == part:
            return candidate


def _sister(rng: np.random.Generator, part: str, elder: Subject) -> Subject | None:
    """Return a sister that differs visibly from the elder, preferably in two described features.

    None if the grammar has hardly any, because the phrases of a kind may all belong to the other part.
    """
    spare = None
    for _ in range(50):
        sister = elder.sister(rng)
        apart = set(sister.phrase.split()) ^ set(elder.phrase.split())
        if apart and _part_of(sister) == part:
            if len(apart) > 2:
                return sister
            spare = spare or sister
    return spare


def _part_of(candidate: Subject) -> str:
    return PARTS[crc32(candidate.phrase.encode()) % len(PARTS)]


def label(candidate: Subject, part: str, domain: str, index: int) -> str:
    """Return `apparel/striped-hoodie-0017`; numbers of the pretraining part start with a p."""
    prefix = "p" if part == "pretrain" else ""
    return f"{domain}/{candidate.name}-{prefix}{index:04d}"
