"""Dishes from above: a plate with its rim, the food on it, toppings, sauce, on a table."""

from dataclasses import dataclass

import numpy as np

from toydomains.kit.colour import RGB, jitter, lit
from toydomains.kit.outline import Points, arc, around, ellipse, rect, smooth, star, turned
from toydomains.kit.pen import Mark, Pen, pick
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import TABLES, tabletop
from toydomains.kit.subject import NUMBERS, Subject, a, listed, one_of, real

CHINAWARE = ("plate", "bowl", "square plate")
RIMS = ("plain", "ringed", "dotted", "leafy", "speckled", "two-tone")
CHINA = ("white", "cream", "light blue", "teal", "charcoal", "pink", "mint", "mustard")
BASES: dict[str, RGB] = {
    "rice": (246, 240, 222), "noodles": (236, 200, 122), "tomato soup": (214, 84, 52),
    "pea soup": (138, 168, 84), "pumpkin soup": (234, 154, 62), "salad": (122, 168, 80),
    "pizza": (240, 204, 116), "pancakes": (222, 160, 88), "pie": (216, 160, 96),
    "curry": (206, 146, 52), "porridge": (232, 216, 190), "chocolate cake": (104, 66, 50),
}  # fmt: skip
BAKED = ("pizza", "pancakes", "pie", "chocolate cake")
_EGG = [(-0.55, 0), (-0.2, -0.44), (0.4, -0.34), (0.56, 0.1), (0.1, 0.46)]
_WEDGE = [(0.05, 0.0), (0.36, -0.12), (0.36, 0.12)]  # of a lemon
_BASIL = [(-0.55, 0), (-0.1, -0.3), (0.4, -0.12), (0.56, 0.04), (0.2, 0.26), (-0.2, 0.26)]
_FOOT = [(0.4, 0.34), (-0.4, 0.34)]  # of a dumpling
PIECES: dict[str, list[Mark]] = {
    "tomatoes": [
        (ellipse(0, 0, 0.5, steps=18), (212, 58, 44)),
        (ellipse(0, 0, 0.4, steps=18), (236, 104, 78)),
        *((seed, (250, 196, 110)) for seed in around(ellipse(0.2, 0, 0.13, 0.09, 9), 4)),
    ],
    "eggs": [(smooth(_EGG), (252, 250, 244)), (ellipse(0, 0, 0.24, steps=16), (248, 180, 50))],
    "olives": [
        (ellipse(0, 0, 0.36, 0.3, 16), (74, 84, 48)),
        (ellipse(0.05, 0, 0.13, 0.12, 10), (190, 60, 44)),
    ],
    "prawns": [
        (arc(0, 0, 0.34, 0.34, 30, 300, 16), (240, 138, 104), 0.26),
        (arc(0, 0, 0.34, 0.34, 60, 270, 9), (252, 196, 170), 0.07),
        ([(0.16, -0.3), (0.48, -0.5), (0.46, -0.2)], (224, 100, 78)),
    ],
    "mushrooms": [
        (arc(0, 0.05, 0.48, 0.46, 180, 360, 14), (214, 186, 156)),
        (rect(-0.15, 0.0, 0.15, 0.45, 0.1), (240, 226, 204)),
        (arc(0, 0.05, 0.3, 0.25, 180, 360, 10), (150, 116, 92), 0.07),
    ],
    "lemon slices": [
        (ellipse(0, 0, 0.5, steps=20), (244, 206, 60)),
        (ellipse(0, 0, 0.42, steps=20), (252, 244, 200)),
        *((wedge, (250, 222, 100)) for wedge in around(_WEDGE, 6)),
    ],
    "berries": [
        mark
        for x, y, colour in (
            (-0.2, 0.1, (66, 66, 120)),
            (0.22, 0.14, (176, 44, 74)),
            (0.0, -0.22, (88, 60, 116)),
        )
        for mark in (
            (ellipse(x, y, 0.26, steps=14), colour),
            (ellipse(x - 0.07, y - 0.08, 0.07, steps=8), lit(colour, 1.4)),
        )
    ],
    "basil leaves": [
        (smooth(_BASIL), (70, 130, 66)),
        ([(-0.5, 0), (0.45, 0.02)], (140, 186, 110), 0.06),
    ],
    "cucumber slices": [
        (ellipse(0, 0, 0.48, steps=18), (68, 122, 66)),
        (ellipse(0, 0, 0.4, steps=18), (212, 232, 170)),
        *((seed, (168, 200, 124)) for seed in around(ellipse(0.18, 0, 0.07, 0.035, 8), 5)),
    ],
    "carrot sticks": [
        (turned(rect(-0.55, y - 0.1, 0.55, y + 0.1, 0.05), angle, (0, y)), (236, 130, 48))
        for y, angle in ((-0.18, 10), (0.12, -14))
    ],
    "cheese cubes": [
        ([(-0.35, -0.1), (0.0, -0.36), (0.4, -0.14), (0.04, 0.12)], (252, 240, 200)),
        ([(-0.35, -0.1), (0.04, 0.12), (0.04, 0.42), (-0.35, 0.2)], (240, 218, 150)),
        ([(0.04, 0.12), (0.4, -0.14), (0.4, 0.14), (0.04, 0.42)], (224, 196, 120)),
    ],
    "dumplings": [
        (np.concatenate([arc(0, 0.14, 0.54, 0.5, 180, 360, 14), _FOOT]), (246, 228, 196)),
        *(
            (arc(0, 0.14, 0.5, 0.46, angle, angle + 8, 3), (206, 172, 128), 0.12)
            for angle in range(200, 350, 24)
        ),
    ],
}
TOPPINGS = tuple(PIECES)
LAYOUTS = ("in a ring", "in a row", "in a heap", "scattered", "in two rows")
DARK, PALE = ("blue", "rust", "dark green"), ("cream", "white")  # accents on china
SAUCES = ("no", "zigzag", "spiral", "dotted")


@dataclass(frozen=True)
class Dish(Subject):
    """A dish: the recipe and its plating; the pieces vary a little in every view."""

    kin = ("base", "vessel", "china", "accent", "rim")
    title = "{0.base}-with-{0.topping}"

    china: str = one_of(CHINA)
    base: str = one_of(tuple(BASES))
    topping: str = one_of(TOPPINGS)
    vessel: str = one_of(lambda d: (*CHINAWARE, "wooden board" if d.base in BAKED else "pan"))
    rim: str = one_of(RIMS)
    accent: str = one_of(lambda d: DARK if d.china in ("white", "cream", "pink", "mint") else PALE)
    pieces: int = one_of(range(3, 9))
    layout: str = one_of(LAYOUTS)
    garnish: str = one_of(lambda d: [t for t in TOPPINGS if t != d.topping])
    sauce: str = one_of(SAUCES)
    sauce_colour: str = one_of(("red", "white", "dark green", "brown", "mustard"))
    spread: float = real(0.7, 0.95)

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
        squash = rng.uniform(0.68, 1.0)
        pose = Pose(scale=(0.88, 1.2), turn_deg=10, tilt=0.04, shift=0.07)
        matrix = placed(rng, (-0.56, -0.56 * squash, 0.56, 0.56 * squash), size, pose)
        matrix = matrix @ np.diag([1, squash, 1])
        pen = blank(size, matrix)
        cutlery(pen, rng)
        vessel(self, pen.at(0, 0, 1, rng.uniform(-40, 40)), 0.09 * (1 - squash))
        serve(self, pen.at(0, 0, 1, rng.uniform(0, 360)), rng)
        return develop(rng, scene, pen.image, lift_px=5)


def cutlery(pen: Pen, rng: np.random.Generator) -> None:
    """Draw a knife, a fork or a spoon next to the plate, or nothing."""
    if rng.random() < 0.5:
        return
    steel = pick(rng, ((196, 198, 204), (214, 178, 104), (150, 110, 80)))
    side = pick(rng, (-1, 1))
    tool = pen.at(side * 0.62, 0.05, 1, rng.uniform(-8, 8))
    tool.fill(rect(-0.014, -0.05, 0.014, 0.42, 0.014), steel, lit(steel, 0.8))
    if rng.random() < 0.5:
        tool.fill(ellipse(0, -0.14, 0.05, 0.1), steel)
    else:
        tool.fill(rect(-0.045, -0.12, 0.045, -0.03, 0.03), steel)
        for x in (-0.04, -0.0075, 0.025):
            tool.fill(rect(x, -0.24, x + 0.015, -0.08), steel)


def vessel(d: Dish, pen: Pen, depth: float) -> None:
    """Draw the board, pan or plate under the food, its rim `depth` units thick on the near side."""
    if d.vessel == "wooden board":
        pen.fill(rect(-0.55, -0.42, 0.55, 0.42, 0.1), (186, 132, 84), (160, 108, 66))
        for y in (-0.24, -0.02, 0.2):
            pen.fill(rect(-0.5, y, 0.5, y + 0.012), (148, 98, 60))
        pen.fill(ellipse(0.47, 0, 0.035), (110, 70, 44))
    elif d.vessel == "pan":
        pen.fill(rect(0.4, -0.06, 0.86, 0.06, 0.05), (58, 56, 60))
        pen.fill(ellipse(0, 0, 0.5), (52, 52, 58))
        pen.fill(ellipse(0, 0, 0.45), (80, 80, 88), (62, 62, 70))
    if d.vessel not in CHINAWARE:
        return

    def outline(radius: float) -> Points:
        if d.vessel == "square plate":
            return rect(-radius, -radius, radius, radius, 0.14)
        return ellipse(0, 0, radius, steps=44)

    outer, well = 0.46 if d.vessel == "square plate" else 0.5, 0.43 if d.vessel == "bowl" else 0.36
    pen.fill(outline(outer) + (0, depth), lit(d.china, 0.66))
    pen.fill(outline(outer), lit(d.china, 1.08), lit(d.china, 0.92))
    if d.rim == "two-tone":
        pen.fill(outline(outer), d.accent)
    pen.fill(outline(well + 0.012), lit(d.china, 0.82))
    pen.fill(outline(well), lit(d.china, 0.94), lit(d.china, 1.06))
    radius = (outer + well) / 2
    if d.rim == "ringed":
        for r in (radius - 0.02, radius + 0.035):
            pen.line(outline(r), d.accent, 0.014, closed=True)
    elif d.rim in ("dotted", "leafy"):
        leaf = turned(ellipse(0, 0, 0.045, 0.017, 12), 55, (0, 0))
        mark = leaf if d.rim == "leafy" else ellipse(0, 0, 0.022, steps=10)
        for copy in around(mark + (radius, 0), 24):
            pen.fill(copy, d.accent)
    elif d.rim == "speckled":
        spots = np.random.default_rng(5).uniform(-0.5, 0.5, (70, 2))
        distance = np.hypot(*spots.T)
        for x, y in spots[(distance > 0.36) & (distance < 0.48)]:
            pen.fill(ellipse(x, y, 0.011, steps=7), d.accent)


def base_of(pen: Pen, rng: np.random.Generator, base: str, reach: float) -> None:
    """Draw the base that fills the plate, within `reach` of the origin."""
    colour, heap = BASES[base], smooth(star(0, 0, 1.04 * reach, tips=9, inner=0.93))
    if base == "noodles":
        pen.fill(heap, lit(colour, 0.8))
        for _ in range(16):
            x, y, r = *(rng.normal(0, 0.3, 2) * reach), rng.uniform(0.2, 0.5) * reach
            start = rng.uniform(0, 360)
            pen.line(arc(x, y, r, r, start, start + 200, 12), jitter(rng, colour, 0.12), 0.02)
    elif base == "salad":
        edge = [(-0.1, 0), (-0.03, -0.06), (0.05, -0.045), (0.1, 0.0), (0.04, 0.05), (-0.04, 0.05)]
        for i in range(22):
            angle, r = 2.4 * i, reach * np.sqrt((i + 0.5) / 22)
            leaf = turned(smooth(edge, 3), rng.uniform(0, 360), (0, 0))
            spot = (r * np.cos(angle), r * np.sin(angle))
            pen.fill(leaf + spot, jitter(rng, colour, 0.25))
    elif base in BAKED:
        pen.fill(ellipse(0, 0, 1.06 * reach), lit(colour, 0.72))
        pen.fill(ellipse(0, -0.012, 0.97 * reach), lit(colour, 1.08), lit(colour, 0.95))
    else:  # flat glossy soup, or a heap of grains
        soup = "soup" in base or base in ("curry", "porridge")
        outline = ellipse(0, 0, 1.05 * reach) if soup else heap
        pen.fill(outline, lit(colour, 1.05), lit(colour, 0.9))
        for _ in range(26):
            x, y = np.clip(rng.normal(0, 0.36, 2), -0.66, 0.66) * reach
            grain = turned(ellipse(x, y, 0.02, 0.008, 8), rng.uniform(0, 180), (x, y))
            pen.fill(grain, lit(colour, 1.3 if soup else 0.85))
    if base == "pizza":
        pen.fill(ellipse(0, 0, 0.86 * reach), (214, 92, 58))
        pen.fill(smooth(star(0, 0, 0.8 * reach, tips=8, inner=0.9)), (250, 220, 140))
    elif base == "pie":
        for t in np.linspace(-0.6, 0.6, 5) * reach:
            half = float(np.sqrt(max(0.9 * reach**2 - t**2, 0)))
            pen.fill(rect(t - 0.02, -half, t + 0.02, half), (238, 196, 132))
            pen.fill(rect(-half, t - 0.02, half, t + 0.02), (246, 208, 146))
    elif base == "pancakes":
        pen.fill(ellipse(0.02, -0.03, 0.8 * reach), (238, 186, 112))
        pen.fill(ellipse(0.02, -0.03, 0.66 * reach), (206, 136, 70))
    elif base == "chocolate cake":
        for slit in around(rect(-0.005, 0, 0.005, 0.95 * reach), 8):
            pen.fill(slit, (72, 44, 36))


def piece(pen: Pen, name: str) -> None:
    """Draw one topping, about a unit across, centred on the origin."""
    pen.fill(ellipse(0.06, 0.08, 0.48, 0.44, 14), (40, 26, 30), alpha=0.25)
    pen.draw(PIECES[name])


def serve(d: Dish, pen: Pen, rng: np.random.Generator) -> None:
    """Draw base, sauce, toppings and garnish; the pieces vary a little in every view."""
    reach = (0.37 if d.vessel in ("plate", "square plate") else 0.42) * d.spread
    base_of(pen, rng, d.base, reach)
    if d.sauce == "zigzag":
        line = np.stack([np.linspace(-0.8, 0.8, 9), np.arange(9) % 2 - 0.5], axis=1)
        pen.line(line * reach, d.sauce_colour, 0.028)
    elif d.sauce == "spiral":
        t = np.linspace(0.4, 5.5 * np.pi, 60)
        line = np.stack([np.cos(t), np.sin(t)], axis=1) * (0.85 * reach * t / t[-1])[:, None]
        pen.line(line, d.sauce_colour, 0.024)
    elif d.sauce == "dotted":
        for drop in around(ellipse(0.9 * reach, 0, 0.024, steps=10), 10):
            pen.fill(drop, d.sauce_colour)
    for x, y in _spots(d, rng) * reach:
        piece(pen.at(x, y, 0.15, rng.uniform(0, 360)), d.topping)
    for angle in np.radians((20, 50, 80) + rng.normal(0, 5, 3)):
        x, y = 0.85 * reach * np.cos(angle), 0.85 * reach * np.sin(angle)
        piece(pen.at(x, y, 0.1, rng.uniform(0, 360)), d.garnish)


def _spots(d: Dish, rng: np.random.Generator) -> np.ndarray:
    """Return the positions of the pieces, [pieces, 2], in units of the food's reach."""
    n, t = d.pieces, np.arange(d.pieces)
    turn, radius = 2.4 * t, np.full(n, 0.68)
    if d.layout == "in a row":
        spots = np.stack([np.linspace(-0.8, 0.8, n), np.zeros(n)], axis=1)
    elif d.layout == "in two rows":
        spots = np.stack([np.linspace(-0.65, 0.65, n), 0.9 * (t % 2 - 0.5)], axis=1)
    else:
        if d.layout == "in a ring":
            turn = 2 * np.pi * t / n
        elif d.layout == "in a heap":
            radius = 0.38 * np.sqrt(t)
        else:
            turn, radius = turn + rng.uniform(0, 0.8, n), 0.8 * np.sqrt((t + 0.5) / n)
        spots = np.minimum(radius, 0.85)[:, None] * np.stack([np.cos(turn), np.sin(turn)], 1)
    return spots + rng.normal(0, 0.035, (n, 2))
