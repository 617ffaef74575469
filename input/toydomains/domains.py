"""The seven domains by name, and the generation of a class from integers."""

from zlib import crc32

import numpy as np

from toydomains.apparel import Garment
from toydomains.cars import Car
from toydomains.dishes import Dish
from toydomains.illustrations import Character
from toydomains.kit.subject import Subject
from toydomains.landmarks import Landmark
from toydomains.packages import Package
from toydomains.storefronts import Storefront

DOMAINS: dict[str, type[Subject]] = {
    "storefronts": Storefront,
    "packages": Package,
    "apparel": Garment,
    "cars": Car,
    "landmarks": Landmark,
    "illustrations": Character,
    "dishes": Dish,
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
        candidate = DOMAINS[domain].sample(rng)
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
