"""Parameters of a shop: a trade, a name, a wall, a sign, an awning, a door, windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.colour import PALETTES
from toydomains.kit.lettering import Lettering, invented
from toydomains.kit.subject import Subject, a, count

# Each with the emblem of its sign.
TRADES = {
    "bakery": "cup", "cafe": "cup", "bookshop": "moon", "florist": "flower", "fishmonger": "fish",
    "grocer": "apple", "toy shop": "star", "pet shop": "cat", "jeweller": "crown",
    "chandler": "anchor", "tea room": "leaf", "ski shop": "mountain", "lamp shop": "sun",
    "record shop": "lightning", "bird shop": "bird", "gift shop": "heart",
}  # fmt: skip
AWNINGS = ("no", "striped", "scalloped", "plain", "rounded")
WALLS = ("plastered", "brick", "tiled", "boarded")
WALL_COLOURS = ("cream", "tan", "grey", "white", "pink", "mint", "light blue", "rust")
SIGNS = ("board", "letters", "oval", "framed board")
DOORS = ("glass", "panelled", "arched")


@dataclass(frozen=True)
class Storefront(Subject):
    """A shop; the door's position is 0 (left), 1 (middle) or 2 (right)."""

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
