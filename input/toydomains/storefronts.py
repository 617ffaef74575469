"""Storefronts: a wall, a sign, an awning, a door and windows, seen from across the street."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from toydomains.kit.colour import PALETTES, lit
from toydomains.kit.ornament import emblem
from toydomains.kit.outline import arc, ellipse, rect, smooth
from toydomains.kit.pen import Pen, pick
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import outdoors
from toydomains.kit.subject import Lettering, Subject, a, chance, count, drawn, invented, one_of

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
    title = "{0.shop}-{0.trade}"

    trade: str = one_of(tuple(TRADES))
    shop: str = invented()
    palette: tuple[str, str, str] = one_of(PALETTES)
    wall: str = one_of(WALLS)
    wall_colour: str = one_of(WALL_COLOURS)
    awning: str = one_of(AWNINGS)
    sign: str = one_of(SIGNS)
    lettering: Lettering = drawn(lambda rng, _: Lettering.sample(rng))
    emblem_side: int = one_of(range(3))
    door: int = one_of(range(3))
    door_style: str = one_of(DOORS)
    panes: int = one_of(range(1, 5))
    above: int = one_of(range(5))
    shutters: bool = chance(0.45)
    display: str = one_of(("shelves", "lamps", "emblems", "curtains"))
    plants: bool = chance(0.4)
    lamps: bool = chance(0.3)

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
        pot = np.array([(-0.045, 0.95), (0.045, 0.95), (0.035, 1.05), (-0.035, 1.05)])
        for x in (0.02, 0.98) if self.plants else ():  # potted trees on both sides
            pen.fill(pot + (x, 0), "rust")
            pen.fill(ellipse(x, 0.89, 0.06, 0.075), "dark green")
            pen.fill(ellipse(x - 0.015, 0.87, 0.035, 0.045), "green")
        return develop(rng, scene, pen.image, obstacles=0.5)


def neighbours(pen: Pen, rng: np.random.Generator) -> None:
    """Draw plain houses to the left and to the right, different in every view."""
    for x0, x1 in ((-1.2, 0.0), (1.0, 2.2)):
        colour = pick(rng, ("tan", "grey", "cream", "brown", "rose"))
        colour = lit(colour, rng.uniform(0.75, 1.0))
        top = rng.uniform(-0.15, 0.3)
        pen.fill(rect(x0, top, x1, 1.04), colour)
        for x in np.arange(x0 + 0.08, x1 - 0.1, 0.26):
            pen.fill(rect(x, max(top, 0) + 0.12, x + 0.12, max(top, 0) + 0.32), lit(colour, 0.6))
            pen.fill(rect(x, 0.66, x + 0.16, 1.04), lit(colour, 0.7))


def house(s: Storefront, pen: Pen) -> None:
    """Draw the wall and the windows of the upper floor."""
    wall = rect(0, 0, 1, 1.04)
    pen.fill(wall, lit(s.wall_colour, 1.04), lit(s.wall_colour, 0.92))
    dark = lit(s.wall_colour, 0.82)
    if s.wall == "brick":
        for i, y in enumerate(np.arange(0.0, 1.04, 0.04)):
            pen.fill(rect(0, y, 1, y + 0.006), dark)
            for x in np.arange(0.05 * (i % 2), 1.0, 0.1):
                pen.fill(rect(x, y, x + 0.006, y + 0.04), dark)
    elif s.wall == "tiled":
        for t in np.arange(0.0, 1.04, 0.065):
            pen.fill(rect(0, t, 1, t + 0.006), dark)
            pen.fill(rect(t, 0, t + 0.006, 1.04), dark)
    elif s.wall == "boarded":
        for x in np.arange(0.0, 1.0, 0.055):
            pen.fill(rect(x, 0, x + 0.008, 1.04), dark)
    pen.fill(rect(-0.02, -0.03, 1.02, 0.035), lit(s.wall_colour, 0.7))
    half = min(0.085, 0.3 / max(s.above, 1))
    for x in (np.arange(s.above) + 0.5) / max(s.above, 1):
        if s.shutters:
            pen.fill(rect(x - 1.8 * half, 0.1, x + 1.8 * half, 0.36), s.palette[2])
            pen.fill(rect(x - 1.8 * half, 0.22, x + 1.8 * half, 0.23), lit(s.palette[2], 0.7))
        pen.fill(rect(x - half - 0.012, 0.09, x + half + 0.012, 0.37), "white")
        pen.fill(rect(x - half, 0.1, x + half, 0.36), (116, 146, 170), (74, 98, 124))
        pen.fill(rect(x - 0.006, 0.1, x + 0.006, 0.36), "white")
        pen.fill(rect(x - half, 0.2, x + half, 0.21), "white")
        if s.plants:
            pen.fill(rect(x - half, 0.35, x + half, 0.39), "brown")
            for t in np.linspace(-half, half, 5):
                bloom = "green" if abs(t) < half / 3 else "rose"
                pen.fill(ellipse(x + t, 0.345, 0.024, steps=10), bloom)


def sign(s: Storefront, pen: Pen) -> None:
    """Draw the shop's name and the trade's emblem, on a board or on the wall."""
    main, second, accent = s.palette
    x0, x1, y0, y1 = 0.06, 0.94, 0.43, 0.575
    ink, ground = second, main
    if s.sign == "letters":
        ink, ground = accent if s.wall_colour == main else main, s.wall_colour
    elif s.sign == "oval":
        pen.fill(ellipse(0.5, 0.5, 0.42, 0.1), accent)
        pen.fill(ellipse(0.5, 0.5, 0.4, 0.085), main)
        x0, x1 = 0.16, 0.84
    else:
        edge = accent if s.sign == "framed board" else main
        pen.fill(rect(0.03, y0 - 0.012, 0.97, y1 + 0.012), edge)
        pen.fill(rect(0.045, y0, 0.955, y1), main)
    left = x0 + (0.15 if s.emblem_side == 0 else 0.02)
    right = x1 - (0.15 if s.emblem_side == 1 else 0.02)
    s.lettering.write(pen, s.shop, (left, y0 + 0.025, right, y1 - 0.025), ink)
    if s.emblem_side < 2:
        x = x0 + 0.02 if s.emblem_side == 0 else x1 - 0.12
        emblem(pen.on(rect(x, 0.455, x + 0.095, 0.55)), TRADES[s.trade], accent, ground)
    if s.lamps:
        for x in (0.2, 0.5, 0.8):
            pen.line([(x, 0.41), (x, 0.385), (x + 0.03, 0.38)], "charcoal", 0.012)
            pen.fill(arc(x, 0.435, 0.035, 0.035, 180, 360), "charcoal")


def shop(s: Storefront, pen: Pen, night: bool) -> None:
    """Draw the windows with their display, and the door; lit from inside at night."""
    main, _, accent = s.palette
    pen.fill(rect(0.03, 0.6, 0.97, 1.04), lit(main, 0.9))
    glass = ((255, 226, 150), (246, 196, 120)) if night else ((146, 176, 190), (94, 122, 142))
    spans = {0: [(0.34, 0.93)], 1: [(0.07, 0.36), (0.64, 0.93)], 2: [(0.07, 0.66)]}[s.door]
    for x0, x1 in spans:
        pen.fill(rect(x0, 0.63, x1, 0.93), *glass)
        _display(s, pen, x0, x1)
        per_span = max(1, round(s.panes * (x1 - x0) / 0.6))
        for x in np.linspace(x0, x1, per_span + 1):
            pen.fill(rect(x - 0.008, 0.63, x + 0.008, 0.93), accent)
        pen.fill(rect(x0 - 0.008, 0.625, x1 + 0.008, 0.642), accent)
        pen.fill(rect(x0, 0.955, x1, 1.02), lit(main, 1.12))
    colour, x, w = lit(accent, 0.92), (0.07, 0.39, 0.71)[s.door], 0.22
    door = rect(x, 0.62, x + w, 1.04)
    if s.door_style == "arched":
        top = arc(x + w / 2, 0.72, w / 2, 0.1, 180, 360)
        door = np.concatenate([top, [(x + w, 1.04), (x, 1.04)]])
    pen.fill(door, colour)
    if s.door_style == "panelled":
        for (y0, y1), u in product(((0.65, 0.8), (0.83, 1.0)), (0.025, 0.12)):
            pen.fill(rect(x + u, y0, x + u + 0.075, y1), lit(colour, 0.78))
    else:
        y0, y1 = (0.66, 0.97) if s.door_style == "glass" else (0.7, 0.86)
        pen.fill(rect(x + 0.03, y0, x + w - 0.03, y1), *glass)
    pen.fill(ellipse(x + w - 0.025, 0.85, 0.013, steps=10), "mustard")
    pen.fill(rect(x - 0.01, 1.025, x + w + 0.01, 1.045), "grey")


def _display(s: Storefront, pen: Pen, x0: float, x1: float) -> None:
    """Draw the goods in the window."""
    main, second, accent = s.palette
    xs = np.arange(x0 + 0.05, x1 - 0.03, 0.085)
    if s.display == "shelves":
        for y in (0.79, 0.92):
            pen.fill(rect(x0, y, x1, y + 0.012), "brown")
            for i, x in enumerate(xs):
                top = y - 0.04 - 0.02 * (i % 3)
                pen.fill(rect(x - 0.025, top, x + 0.025, y, 0.01), (second, accent, "rose")[i % 3])
    elif s.display == "emblems":
        for x in xs[::2]:
            emblem(pen.on(rect(x - 0.01, 0.72, x + 0.1, 0.84)), TRADES[s.trade], second, main)
    elif s.display == "lamps":
        for x in xs[::2]:
            pen.line([(x, 0.63), (x, 0.7)], "charcoal", 0.008)
            pen.fill(ellipse(x, 0.72, 0.03), (255, 236, 170))
        pen.fill(rect(x0, 0.86, x1, 0.93), accent)
    else:
        for side, x in ((1, x0), (-1, x1)):
            drape = np.array([(0, 0.63), (0.11, 0.63), (0.05, 0.8), (0.07, 0.93), (0, 0.93)])
            pen.fill(drape * (side, 1) + (x, 0), accent)


def awning(s: Storefront, pen: Pen) -> None:
    """Draw the awning over the windows, and its shade."""
    main, second, _ = s.palette
    if s.awning == "no":
        return
    n, y0, y1 = 11, 0.585, 0.7
    xs, xb = np.linspace(0.05, 0.95, n + 1), np.linspace(0.01, 0.99, n + 1)
    for i in range(n):
        colour = second if i % 2 and s.awning in ("striped", "scalloped") else main
        strip = np.array([(xs[i], y0), (xs[i + 1], y0), (xb[i + 1], y1), (xb[i], y1)])
        pen.fill(strip, lit(colour, 1.08), lit(colour, 0.86))
        middle, half = (xb[i] + xb[i + 1]) / 2, (xb[1] - xb[0]) / 2
        if s.awning == "scalloped":
            pen.fill(arc(middle, y1 - 0.002, half, 0.035, 0, 180, 9), lit(colour, 0.9))
        elif s.awning == "striped":
            pen.fill(rect(xb[i], y1 - 0.002, xb[i + 1], y1 + 0.025), lit(colour, 0.9))
    if s.awning == "rounded":
        hood = [(0.02, 0.72), (0.06, 0.6), (0.5, 0.57), (0.94, 0.6), (0.98, 0.72), (0.5, 0.7)]
        pen.fill(smooth(hood), lit(main, 1.1), lit(main, 0.8))
    pen.fill(rect(0.04, y1 + 0.03, 0.96, y1 + 0.07), (20, 18, 36), alpha=0.22)
