"""Packaged goods: boxes, cans, bottles, jars, cartons, pouches. The label makes the class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import Pen, pick
from toydomains.kit.colour import PALETTES
from toydomains.kit.emblem import EMBLEMS, emblem
from toydomains.kit.lettering import Lettering, invented
from toydomains.kit.outline import ellipse, rect, star
from toydomains.kit.photo import View, develop, frame
from toydomains.kit.scene import room
from toydomains.kit.subject import Subject, a
from toydomains.packages.labels import LAYOUTS, ground_and_ink
from toydomains.packages.shapes import carton, pouch, vessel

GOODS = {
    "box": ("tea", "oats", "soap", "rice", "pasta", "cocoa"),
    "carton": ("milk", "juice", "soup", "cream"),
    "can": ("soup", "beans", "cocoa", "nuts", "soda"),
    "bottle": ("juice", "oil", "soap", "syrup"),
    "jar": ("jam", "honey", "nuts", "olives"),
    "pouch": ("coffee", "rice", "nuts", "flour"),
}
HEIGHTS = {"bottle": (2.0, 2.7), "can": (1.0, 1.7), "jar": (1.1, 1.5)}  # over the width
COUNTERS = (
    ("oak", "on a wooden shelf"),
    ("walnut", "on a dark wooden shelf"),
    ("white marble", "on a marble counter"),
    ("slate", "on a slate counter"),
    ("checked cloth", "on a checked tablecloth"),
    ("linen", "on a linen tablecloth"),
    ("terrazzo", "on a terrazzo counter"),
)


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
            layout=pick(rng, tuple(LAYOUTS)),
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

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng, (1.0, 0.75, 0.8, 0.67, 1.0, 1.25))
        scene = room(rng, size, (0.3, 0.55), COUNTERS)
        draw = {"box": carton, "carton": carton, "pouch": pouch}.get(self.form, vessel)
        layer, shadow = draw(self, rng, size)
        return develop(rng, scene, layer, shadow=shadow)

    def label(self, pen: Pen) -> None:
        """Draw the label over the unit square."""
        LAYOUTS[self.layout](pen, self.palette)
        ground, ink = ground_and_ink(self.layout, self.palette)
        high, low = ((0.08, 0.3), (0.42, 0.78)) if self.high_brand else ((0.62, 0.84), (0.14, 0.52))
        self.lettering.write(pen, self.brand, (0.1, high[0], 0.9, high[1]), ink[0])
        span = (low[1] - low[0]) / 2
        emblem(pen.on(rect(0.5 - span, low[0], 0.5 + span, low[1])), self.emblem, ink[1], ground)
        pen.text(self.goods.upper(), (0.25, 0.86, 0.75, 0.95), ink[0], weight=1, spacing=4)
        if self.badge:
            pen.fill(star(0.83, 0.36, 0.13, tips=10, inner=0.8), self.palette[2])
            pen.fill(ellipse(0.83, 0.36, 0.07, steps=12), "white")
