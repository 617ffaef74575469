"""Storefronts: a wall, a sign, an awning, a door and windows, seen from across the street."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guie.toy.canvas import Pen, arc, ellipse, pick, rect, smooth
from guie.toy.colour import PALETTES, lit
from guie.toy.lettering import Lettering, invented
from guie.toy.ornament import emblem
from guie.toy.photo import Pose, View, blank, develop, frame, placed
from guie.toy.scene import outdoors
from guie.toy.subject import Subject, a, count

TRADES = {
    "bakery": "cup", "cafe": "cup", "bookshop": "moon", "florist": "flower", "fishmonger": "fish",
    "grocer": "apple", "toy shop": "star", "pet shop": "cat", "jeweller": "crown",
    "chandler": "anchor", "tea room": "leaf", "ski shop": "mountain", "lamp shop": "sun",
    "record shop": "lightning", "bird shop": "bird", "gift shop": "heart",
}  # fmt: skip
AWNINGS = ("no", "striped", "scalloped", "plain", "rounded")
WALLS = ("plastered", "brick", "tiled", "boarded")
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
            wall_colour=pick(
                rng, ("cream", "tan", "grey", "white", "pink", "mint", "light blue", "rust")
            ),
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
        awning = {"no": "no awning", "striped": f"a {main} and {second} striped awning"}.get(
            self.awning, f"{a(self.awning)} {main} awning"
        )
        return (
            f"{a(self.trade)} called {self.shop.capitalize()} in a {self.wall} {self.wall_colour} "
            f"house, with {awning}, {a(self.door_style)} door {side} and "
            f"{count(self.above, 'window')} above"
        )

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng, (1.0, 1.33, 1.25, 0.8, 1.0, 0.75))
        scene = outdoors(rng, size, (0.7, 0.84), ("paving", "asphalt"))
        pose = Pose(scale=(0.78, 1.2), turn_deg=3, tilt=0.13, shift=0.1, ground=(0.84, 0.97))
        pen = blank(size, placed(rng, (0.0, 0.0, 1.0, 1.04), size, pose))
        self._neighbours(pen, rng)
        self._house(pen)
        self._sign(pen)
        self._shop(pen, scene.place in ("at night", "at dusk"))
        self._awning(pen)
        self._street(pen)
        return develop(rng, scene, pen.image, obstacles=0.5)

    def _neighbours(self, pen: Pen, rng: np.random.Generator) -> None:
        for x0, x1 in ((-1.2, -0.0), (1.0, 2.2)):
            colour = lit(
                pick(rng, ("tan", "grey", "cream", "brown", "rose")), float(rng.uniform(0.75, 1.0))
            )
            top = float(rng.uniform(-0.15, 0.3))
            pen.fill(rect(x0, top, x1, 1.04), colour)
            for x in np.arange(x0 + 0.08, x1 - 0.1, 0.26):
                pen.fill(
                    rect(x, max(top, 0) + 0.12, x + 0.12, max(top, 0) + 0.32), lit(colour, 0.6)
                )
                pen.fill(rect(x, 0.66, x + 0.16, 1.04), lit(colour, 0.7))

    def _house(self, pen: Pen) -> None:
        wall = rect(0, 0, 1, 1.04)
        pen.fill(wall, lit(self.wall_colour, 1.04), lit(self.wall_colour, 0.92))
        dark = lit(self.wall_colour, 0.82)
        if self.wall == "brick":
            for i, y in enumerate(np.arange(0.0, 1.04, 0.04)):
                pen.fill(rect(0, y, 1, y + 0.006), dark)
                for x in np.arange(0.05 * (i % 2), 1.0, 0.1):
                    pen.fill(rect(x, y, x + 0.006, y + 0.04), dark)
        elif self.wall == "tiled":
            for t in np.arange(0.0, 1.04, 0.065):
                pen.fill(rect(0, t, 1, t + 0.006), dark)
                pen.fill(rect(t, 0, t + 0.006, 1.04), dark)
        elif self.wall == "boarded":
            for x in np.arange(0.0, 1.0, 0.055):
                pen.fill(rect(x, 0, x + 0.008, 1.04), dark)
        pen.fill(rect(-0.02, -0.03, 1.02, 0.035), lit(self.wall_colour, 0.7))
        for i in range(self.above):
            self._upper_window(pen, (i + 0.5) / self.above)

    def _upper_window(self, pen: Pen, x: float) -> None:
        half = min(0.085, 0.3 / self.above)
        if self.shutters:
            pen.fill(rect(x - 1.8 * half, 0.1, x + 1.8 * half, 0.36), self.palette[2])
            pen.fill(rect(x - 1.8 * half, 0.22, x + 1.8 * half, 0.23), lit(self.palette[2], 0.7))
        pen.fill(rect(x - half - 0.012, 0.09, x + half + 0.012, 0.37), "white")
        pen.fill(rect(x - half, 0.1, x + half, 0.36), (116, 146, 170), (74, 98, 124))
        pen.fill(rect(x - 0.006, 0.1, x + 0.006, 0.36), "white")
        pen.fill(rect(x - half, 0.2, x + half, 0.21), "white")
        if self.plants:
            pen.fill(rect(x - half, 0.35, x + half, 0.39), "brown")
            for t in np.linspace(-half, half, 5):
                pen.fill(
                    ellipse(x + t, 0.345, 0.024, steps=10), "green" if abs(t) < half / 3 else "rose"
                )

    def _sign(self, pen: Pen) -> None:
        main, second, accent = self.palette
        x0, x1, y0, y1 = 0.06, 0.94, 0.43, 0.575
        ink, ground = second, main
        if self.sign == "letters":
            ink, ground = (
                main if self.wall_colour not in self.palette[:1] else accent,
                self.wall_colour,
            )
        elif self.sign == "oval":
            pen.fill(ellipse(0.5, 0.5, 0.42, 0.1), accent)
            pen.fill(ellipse(0.5, 0.5, 0.4, 0.085), main)
            x0, x1 = 0.16, 0.84
        else:
            pen.fill(
                rect(0.03, y0 - 0.012, 0.97, y1 + 0.012),
                accent if self.sign == "framed board" else main,
            )
            pen.fill(rect(0.045, y0, 0.955, y1), main)
        left = x0 + (0.15 if self.emblem_side == 0 else 0.02)
        right = x1 - (0.15 if self.emblem_side == 1 else 0.02)
        self.lettering.write(pen, self.shop, (left, y0 + 0.025, right, y1 - 0.025), ink)
        if self.emblem_side < 2:
            x = x0 + 0.02 if self.emblem_side == 0 else x1 - 0.12
            emblem(pen.on(rect(x, 0.455, x + 0.095, 0.55)), TRADES[self.trade], accent, ground)
        if self.lamps:
            for x in (0.2, 0.5, 0.8):
                pen.line([(x, 0.41), (x, 0.385), (x + 0.03, 0.38)], "charcoal", 0.012)
                pen.fill(arc(x, 0.435, 0.035, 0.035, 180, 360), "charcoal")

    def _shop(self, pen: Pen, night: bool) -> None:
        main, _, accent = self.palette
        pen.fill(rect(0.03, 0.6, 0.97, 1.04), lit(main, 0.9))
        door_x = (0.07, 0.39, 0.71)[self.door]
        glass = ((255, 226, 150), (246, 196, 120)) if night else ((146, 176, 190), (94, 122, 142))
        spans = {0: [(0.34, 0.93)], 1: [(0.07, 0.36), (0.64, 0.93)], 2: [(0.07, 0.66)]}[self.door]
        for x0, x1 in spans:
            pen.fill(rect(x0, 0.63, x1, 0.93), *glass)
            self._display(pen, x0, x1)
            per_span = max(1, round(self.panes * (x1 - x0) / 0.6))
            for x in np.linspace(x0, x1, per_span + 1):
                pen.fill(rect(x - 0.008, 0.63, x + 0.008, 0.93), accent)
            pen.fill(rect(x0 - 0.008, 0.625, x1 + 0.008, 0.642), accent)
            pen.fill(rect(x0, 0.955, x1, 1.02), lit(main, 1.12))
        self._door(pen, door_x, glass)

    def _display(self, pen: Pen, x0: float, x1: float) -> None:
        """What stands in the window."""
        main, second, accent = self.palette
        xs = np.arange(x0 + 0.05, x1 - 0.03, 0.085)
        if self.display == "shelves":
            for y in (0.79, 0.92):
                pen.fill(rect(x0, y, x1, y + 0.012), "brown")
                for i, x in enumerate(xs):
                    pen.fill(
                        rect(x - 0.025, y - 0.04 - 0.02 * (i % 3), x + 0.025, y, 0.01),
                        (second, accent, "rose")[i % 3],
                    )
        elif self.display == "emblems":
            for x in xs[::2]:
                emblem(
                    pen.on(rect(x - 0.01, 0.72, x + 0.1, 0.84)), TRADES[self.trade], second, main
                )
        elif self.display == "lamps":
            for x in xs[::2]:
                pen.line([(x, 0.63), (x, 0.7)], "charcoal", 0.008)
                pen.fill(ellipse(x, 0.72, 0.03), (255, 236, 170))
            pen.fill(rect(x0, 0.86, x1, 0.93), accent)
        else:
            for side, x in ((1, x0), (-1, x1)):
                drape = np.array([(0, 0.63), (0.11, 0.63), (0.05, 0.8), (0.07, 0.93), (0, 0.93)])
                pen.fill(drape * (side, 1) + (x, 0), accent)

    def _door(self, pen: Pen, x: float, glass: tuple) -> None:
        frame_, w = lit(self.palette[2], 0.92), 0.22
        outline = rect(x, 0.62, x + w, 1.04)
        if self.door_style == "arched":
            outline = np.concatenate(
                [arc(x + w / 2, 0.72, w / 2, 0.1, 180, 360), [(x + w, 1.04), (x, 1.04)]]
            )
        pen.fill(outline, frame_)
        if self.door_style == "panelled":
            for y0, y1 in ((0.65, 0.8), (0.83, 1.0)):
                for u in (0.025, 0.12):
                    pen.fill(rect(x + u, y0, x + u + 0.075, y1), lit(frame_, 0.78))
        else:
            top = 0.66 if self.door_style == "glass" else 0.7
            pen.fill(
                rect(x + 0.03, top, x + w - 0.03, 0.97 if self.door_style == "glass" else 0.86),
                *glass,
            )
        pen.fill(ellipse(x + w - 0.025, 0.85, 0.013, steps=10), "mustard")
        pen.fill(rect(x - 0.01, 1.025, x + w + 0.01, 1.045), "grey")

    def _awning(self, pen: Pen) -> None:
        main, second, _ = self.palette
        if self.awning == "no":
            return
        n, y0, y1 = 11, 0.585, 0.7
        xs, xb = np.linspace(0.05, 0.95, n + 1), np.linspace(0.01, 0.99, n + 1)
        for i in range(n):
            colour = second if i % 2 and self.awning in ("striped", "scalloped") else main
            strip = np.array([(xs[i], y0), (xs[i + 1], y0), (xb[i + 1], y1), (xb[i], y1)])
            pen.fill(strip, lit(colour, 1.08), lit(colour, 0.86))
            middle, half = (xb[i] + xb[i + 1]) / 2, (xb[1] - xb[0]) / 2
            if self.awning == "scalloped":
                pen.fill(arc(middle, y1 - 0.002, half, 0.035, 0, 180, 9), lit(colour, 0.9))
            elif self.awning == "striped":
                pen.fill(rect(xb[i], y1 - 0.002, xb[i + 1], y1 + 0.025), lit(colour, 0.9))
        if self.awning == "rounded":
            pen.fill(
                smooth(
                    [(0.02, 0.72), (0.06, 0.6), (0.5, 0.57), (0.94, 0.6), (0.98, 0.72), (0.5, 0.7)]
                ),
                lit(main, 1.1),
                lit(main, 0.8),
            )
        pen.fill(rect(0.04, y1 + 0.03, 0.96, y1 + 0.07), (20, 18, 36), alpha=0.22)

    def _street(self, pen: Pen) -> None:
        if self.plants:
            for x in (0.02, 0.98):
                pen.fill(
                    np.array(
                        [(x - 0.045, 0.95), (x + 0.045, 0.95), (x + 0.035, 1.05), (x - 0.035, 1.05)]
                    ),
                    "rust",
                )
                pen.fill(ellipse(x, 0.89, 0.06, 0.075), "dark green")
                pen.fill(ellipse(x - 0.015, 0.87, 0.035, 0.045), "green")
