"""Storefronts: a wall, a sign, an awning, a door and windows, seen from across the street."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.colour import PALETTES
from toydomains.kit.lettering import Lettering, invented
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import outdoors
from toydomains.kit.subject import Subject, a, count
from toydomains.storefronts.parts import TRADES, awning, house, neighbours, shop, sign, street

AWNINGS = ("no", "striped", "scalloped", "plain", "rounded")
WALLS = ("plastered", "brick", "tiled", "boarded")
WALL_COLOURS = ("cream", "tan", "grey", "white", "pink", "mint", "light blue", "rust")
SIGNS = ("board", "letters", "oval", "framed board")
DOORS = ("glass", "panelled", "arched")


@dataclass(frozen=True)
class Storefront(Subject):
    """A shop; the door's place is 0 (left), 1 (middle) or 2 (right)."""

    kin = ("trade", "palette", "wall", "wall_colour", "awning")

    trade: str
    shop: str
    palette: tuple[str, str, str]
    wall: str
    wall_colour: str
    awning: str
    sign: str
    lettering: Lettering
    emblem_side: int
    door: int
    door_style: str
    panes: int
    above: int
    shutters: bool
    display: str
    plants: bool
    lamps: bool

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Storefront:
        trade = pick(rng, tuple(TRADES))
        return cls(
            trade=trade,
            shop=invented(rng),
            palette=pick(rng, PALETTES),
            wall=pick(rng, WALLS),
            wall_colour=pick(rng, WALL_COLOURS),
            awning=pick(rng, AWNINGS),
            sign=pick(rng, SIGNS),
            lettering=Lettering.sample(rng),
            emblem_side=int(rng.integers(0, 3)),
            door=int(rng.integers(0, 3)),
            door_style=pick(rng, DOORS),
            panes=int(rng.integers(1, 5)),
            above=int(rng.integers(0, 5)),
            shutters=bool(rng.random() < 0.45),
            display=pick(rng, ("shelves", "lamps", "emblems", "curtains")),
            plants=bool(rng.random() < 0.4),
            lamps=bool(rng.random() < 0.3),
        )

    @property
    def name(self) -> str:
        return f"{self.shop.lower()}-{self.trade}".replace(" ", "-")

    @property
    def phrase(self) -> str:
        main, second, _ = self.palette
        side = ("on the left", "in the middle", "on the right")[self.door]
        cover = f"{a(self.awning)} {main} awning"
        if self.awning in ("striped", "scalloped"):
            cover = a(f"{main} and {second} {self.awning} awning")
        elif self.awning == "no":
            cover = "no awning"
        return (
            f"{a(self.trade)} called {self.shop.capitalize()} in a {self.wall} {self.wall_colour} "
            f"house, with {cover}, {a(self.door_style)} door {side} and "
            f"{count(self.above, 'window')} above"
        )

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng, (1.0, 1.33, 1.25, 0.8, 1.0, 0.75))
        scene = outdoors(rng, size, (0.7, 0.84), ("paving", "asphalt"))
        pose = Pose(scale=(0.78, 1.2), turn_deg=3, tilt=0.13, shift=0.1, ground=(0.84, 0.97))
        pen = blank(size, placed(rng, (0.0, 0.0, 1.0, 1.04), size, pose))
        neighbours(pen, rng)
        house(self, pen)
        sign(self, pen)
        shop(self, pen, scene.place in ("at night", "at dusk"))
        awning(self, pen)
        street(self, pen)
        return develop(rng, scene, pen.image, obstacles=0.5)
