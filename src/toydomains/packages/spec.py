"""Parameters of a product: a form, goods, a brand, and the label that defines the class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.colour import PALETTES
from toydomains.kit.emblem import EMBLEMS
from toydomains.kit.lettering import Lettering, invented
from toydomains.kit.subject import Subject, a

GOODS = {
    "box": ("tea", "oats", "soap", "rice", "pasta", "cocoa"),
    "carton": ("milk", "juice", "soup", "cream"),
    "can": ("soup", "beans", "cocoa", "nuts", "soda"),
    "bottle": ("juice", "oil", "soap", "syrup"),
    "jar": ("jam", "honey", "nuts", "olives"),
    "pouch": ("coffee", "rice", "nuts", "flour"),
}
LAYOUTS = (
    "banded", "round", "diagonal", "arched", "wavy", "rayed", "framed", "split", "striped", "dotted",
)  # fmt: skip
HEIGHTS = {"bottle": (2.0, 2.7), "can": (1.0, 1.7), "jar": (1.1, 1.5)}  # over the width


@dataclass(frozen=True)
class Package(Subject):
    """A product; the height is a multiple of the width."""

    kin = ("form", "goods", "palette", "layout")

    form: str
    goods: str
    brand: str
    palette: tuple[str, str, str]
    layout: str
    emblem: str
    lettering: Lettering
    high_brand: bool
    badge: bool
    height: float
    depth: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Package:
        form = pick(rng, tuple(GOODS))
        return cls(
            form=form,
            goods=pick(rng, GOODS[form]),
            brand=invented(rng),
            palette=pick(rng, PALETTES),
            layout=pick(rng, LAYOUTS),
            emblem=pick(rng, tuple(EMBLEMS)),
            lettering=Lettering.sample(rng),
            high_brand=bool(rng.random() < 0.6),
            badge=bool(rng.random() < 0.35),
            height=float(rng.uniform(*HEIGHTS.get(form, (1.1, 1.7)))),
            depth=float(rng.uniform(0.3, 0.6)),
        )

    @property
    def name(self) -> str:
        return f"{self.brand.lower()}-{self.goods}-{self.form}"

    @property
    def phrase(self) -> str:
        main, second, _ = self.palette
        label = f"{self.layout} label with {a(self.emblem)}"
        return (
            f"{a(main)} and {second} {self.form} of {self.brand.capitalize()} {self.goods}, "
            f"{a(label)}"
        )
