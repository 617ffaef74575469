"""Dishes from above: a plate with its rim, what lies on it, toppings, sauce, on a laid table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.dishes.food import BAKED, BASES, base_of, piece
from toydomains.kit.canvas import Pen, pick
from toydomains.kit.colour import lit
from toydomains.kit.outline import Points, ellipse, rect, turned
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import TABLES, tabletop
from toydomains.kit.subject import NUMBERS, Subject, a, listed

CHINAWARE = ("plate", "bowl", "square plate")
RIMS = ("plain", "ringed", "dotted", "leafy", "speckled", "two-tone")
CHINA = ("white", "cream", "light blue", "teal", "charcoal", "pink", "mint", "mustard")
TOPPINGS = ("tomatoes", "eggs", "olives", "prawns", "mushrooms", "lemon slices", "berries",
            "basil leaves", "cucumber slices", "carrot sticks", "cheese cubes", "dumplings")  # fmt: skip
LAYOUTS = ("in a ring", "in a row", "in a heap", "scattered", "in two rows")
SAUCES = ("no", "zigzag", "spiral", "dotted")


@dataclass(frozen=True)
class Dish(Subject):
    """A dish: the recipe and its plating; the pieces fall a little differently each time."""

    kin = ("base", "vessel", "china", "accent", "rim")

    vessel: str
    rim: str
    china: str
    accent: str
    base: str
    topping: str
    pieces: int
    layout: str
    garnish: str
    sauce: str
    sauce_colour: str
    spread: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Dish:
        china = pick(rng, CHINA)
        base, topping = pick(rng, tuple(BASES)), pick(rng, TOPPINGS)
        dry = base in BAKED
        return cls(
            vessel=pick(rng, (*CHINAWARE, "wooden board") if dry else (*CHINAWARE, "pan")),
            rim=pick(rng, RIMS),
            china=china,
            accent=pick(
                rng,
                ("blue", "rust", "dark green")
                if china in ("white", "cream", "pink", "mint")
                else ("cream", "white"),
            ),
            base=base,
            topping=topping,
            pieces=int(rng.integers(3, 9)),
            layout=pick(rng, LAYOUTS),
            garnish=pick(rng, tuple(t for t in TOPPINGS if t != topping)),
            sauce=pick(rng, SAUCES),
            sauce_colour=pick(rng, ("red", "white", "dark green", "brown", "mustard")),
            spread=float(rng.uniform(0.7, 0.95)),
        )

    @property
    def name(self) -> str:
        return f"{self.base}-with-{self.topping}".replace(" ", "-")

    @property
    def phrase(self) -> str:
        sauce = "" if self.sauce == "no" else a(f"{self.sauce} {self.sauce_colour} sauce")
        china, rim = self.vessel, ""
        if china in CHINAWARE:
            china, rim = f"{self.china} {china}", f" with {a(self.rim)} rim"
        inside = "in" if self.vessel in ("bowl", "pan") else "on"
        head = f"{self.base} with {NUMBERS[self.pieces]} {self.topping} {self.layout}"
        return f"{listed(head, self.garnish, sauce)} {inside} {a(china)}{rim}"

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng)
        scene = tabletop(rng, size, tuple(t for t in TABLES if t[0] != "grass"))
        squash = float(rng.uniform(0.68, 1.0))
        pose = Pose(scale=(0.88, 1.2), turn_deg=10, tilt=0.04, shift=0.07)
        matrix = placed(rng, (-0.56, -0.56 * squash, 0.56, 0.56 * squash), size, pose)
        matrix = matrix @ np.diag([1, squash, 1])
        pen = blank(size, matrix)
        self._cutlery(pen, rng)
        self._vessel(pen.at(0, 0, 1, float(rng.uniform(-40, 40))), 0.09 * (1 - squash))
        self._food(pen.at(0, 0, 1, float(rng.uniform(0, 360))), rng)
        return develop(rng, scene, pen.image, lift_px=5)

    def _cutlery(self, pen: Pen, rng: np.random.Generator) -> None:
        if rng.random() < 0.5:
            return
        steel = pick(rng, ((196, 198, 204), (214, 178, 104), (150, 110, 80)))
        side = pick(rng, (-1, 1))
        tool = pen.at(side * 0.62, 0.05, 1, float(rng.uniform(-8, 8)))
        tool.fill(rect(-0.014, -0.05, 0.014, 0.42, 0.014), steel, lit(steel, 0.8))
        if rng.random() < 0.5:
            tool.fill(ellipse(0, -0.14, 0.05, 0.1), steel)
        else:
            tool.fill(rect(-0.045, -0.12, 0.045, -0.03, 0.03), steel)
            for x in (-0.04, -0.0075, 0.025):
                tool.fill(rect(x, -0.24, x + 0.015, -0.08), steel)

    def _vessel(self, pen: Pen, depth: float) -> None:
        """The plate, its rim `depth` units thick on the near side."""
        if self.vessel == "wooden board":
            pen.fill(rect(-0.55, -0.42, 0.55, 0.42, 0.1), (186, 132, 84), (160, 108, 66))
            for y in (-0.24, -0.02, 0.2):
                pen.fill(rect(-0.5, y, 0.5, y + 0.012), (148, 98, 60))
            pen.fill(ellipse(0.47, 0, 0.035), (110, 70, 44))
        elif self.vessel == "pan":
            pen.fill(rect(0.4, -0.06, 0.86, 0.06, 0.05), (58, 56, 60))
            pen.fill(ellipse(0, 0, 0.5), (52, 52, 58))
            pen.fill(ellipse(0, 0, 0.45), (80, 80, 88), (62, 62, 70))
        else:
            self._plate(pen, depth)

    def _outline(self, radius: float) -> Points:
        if self.vessel == "square plate":
            return rect(-radius, -radius, radius, radius, 0.14)
        return ellipse(0, 0, radius, steps=44)

    def _plate(self, pen: Pen, depth: float) -> None:
        colour, outer = self.china, 0.46 if self.vessel == "square plate" else 0.5
        pen.fill(self._outline(outer) + (0, depth), lit(colour, 0.66))
        pen.fill(self._outline(outer), lit(colour, 1.08), lit(colour, 0.92))
        if self.rim == "two-tone":
            pen.fill(self._outline(outer), self.accent)
        well = 0.43 if self.vessel == "bowl" else 0.36
        pen.fill(self._outline(well + 0.012), lit(colour, 0.82))
        pen.fill(self._outline(well), lit(colour, 0.94), lit(colour, 1.06))
        self._rim(pen, (outer + well) / 2)

    def _rim(self, pen: Pen, radius: float) -> None:
        """The rim's decoration."""
        if self.rim == "ringed":
            for r in (radius - 0.02, radius + 0.035):
                pen.line(self._outline(r), self.accent, 0.014, closed=True)
        elif self.rim in ("dotted", "leafy"):
            mark = ellipse(0, 0, 0.022, steps=10)
            if self.rim == "leafy":
                mark = turned(ellipse(0, 0, 0.045, 0.017, 12), 55, (0, 0))
            for angle in np.arange(0, 360, 15):
                pen.fill(turned(mark + (radius, 0), angle, (0, 0)), self.accent)
        elif self.rim == "speckled":
            spots = np.random.default_rng(5).uniform(-0.5, 0.5, (70, 2))
            distance = np.hypot(*spots.T)
            for x, y in spots[(distance > 0.36) & (distance < 0.48)]:
                pen.fill(ellipse(x, y, 0.011, steps=7), self.accent)

    def _food(self, pen: Pen, rng: np.random.Generator) -> None:
        reach = (0.37 if self.vessel in ("plate", "square plate") else 0.42) * self.spread
        base_of(pen, rng, self.base, reach)
        self._drizzle(pen, reach)
        for x, y in self._spots(rng) * reach:
            piece(pen.at(x, y, 0.15, float(rng.uniform(0, 360))), self.topping)
        for angle in np.radians((20, 50, 80) + rng.normal(0, 5, 3)):
            x, y = 0.85 * reach * np.cos(angle), 0.85 * reach * np.sin(angle)
            piece(pen.at(x, y, 0.1, float(rng.uniform(0, 360))), self.garnish)

    def _spots(self, rng: np.random.Generator) -> np.ndarray:
        """Where the pieces lie, [pieces, 2], in units of the food's reach."""
        n, t = self.pieces, np.arange(self.pieces)
        turn, radius = 2.4 * t, np.full(n, 0.68)
        if self.layout == "in a row":
            spots = np.stack([np.linspace(-0.8, 0.8, n), np.zeros(n)], axis=1)
        elif self.layout == "in two rows":
            spots = np.stack([np.linspace(-0.65, 0.65, n), 0.9 * (t % 2 - 0.5)], axis=1)
        else:
            if self.layout == "in a ring":
                turn = 2 * np.pi * t / n
            elif self.layout == "in a heap":
                radius = 0.38 * np.sqrt(t)
            else:
                turn, radius = turn + rng.uniform(0, 0.8, n), 0.8 * np.sqrt((t + 0.5) / n)
            spots = np.minimum(radius, 0.85)[:, None] * np.stack([np.cos(turn), np.sin(turn)], 1)
        return spots + rng.normal(0, 0.035, (n, 2))

    def _drizzle(self, pen: Pen, reach: float) -> None:
        """The sauce, under the toppings."""
        if self.sauce == "zigzag":
            line = np.stack([np.linspace(-0.8, 0.8, 9), np.arange(9) % 2 - 0.5], axis=1)
            pen.line(line * reach, self.sauce_colour, 0.028)
        elif self.sauce == "spiral":
            t = np.linspace(0.4, 5.5 * np.pi, 60)
            line = np.stack([np.cos(t), np.sin(t)], axis=1) * (0.85 * reach * t / t[-1])[:, None]
            pen.line(line, self.sauce_colour, 0.024)
        elif self.sauce == "dotted":
            drop = ellipse(0.9 * reach, 0, 0.024, steps=10)
            for angle in np.arange(0, 360, 36):
                pen.fill(turned(drop, angle, (0, 0)), self.sauce_colour)
