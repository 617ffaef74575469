"""Draw food from above: the base that fills the plate, and single pieces of topping."""

from __future__ import annotations

import numpy as np

from toydomains.dishes.spec import BAKED, BASES
from toydomains.kit.canvas import Pen
from toydomains.kit.colour import RGB, jitter, lit
from toydomains.kit.outline import Points, arc, ellipse, rect, smooth, star, turned


def base_of(pen: Pen, rng: np.random.Generator, base: str, reach: float) -> None:
    """Draw the base that fills the plate, within `reach` of the origin."""
    colour = BASES[base]
    if base == "noodles":
        _noodles(pen, rng, colour, reach)
    elif base == "salad":
        _salad(pen, rng, colour, reach)
    elif base in BAKED:
        pen.fill(ellipse(0, 0, 1.06 * reach), lit(colour, 0.72))
        pen.fill(ellipse(0, -0.012, 0.97 * reach), lit(colour, 1.08), lit(colour, 0.95))
        _crust(pen, base, reach)
    else:
        _mass(pen, rng, base, reach)


def _heap(reach: float) -> Points:
    return smooth(star(0, 0, 1.04 * reach, tips=9, inner=0.93))


def _noodles(pen: Pen, rng: np.random.Generator, colour: RGB, reach: float) -> None:
    pen.fill(_heap(reach), lit(colour, 0.8))
    for _ in range(16):
        x, y, r = *(rng.normal(0, 0.3, 2) * reach), rng.uniform(0.2, 0.5) * reach
        start = rng.uniform(0, 360)
        pen.line(arc(x, y, r, r, start, start + 200, 12), jitter(rng, colour, 0.12), 0.02)


def _salad(pen: Pen, rng: np.random.Generator, colour: RGB, reach: float) -> None:
    edge = [(-0.1, 0), (-0.03, -0.06), (0.05, -0.045), (0.1, 0.0), (0.04, 0.05), (-0.04, 0.05)]
    leaf = smooth(edge, 3)
    for i in range(22):
        angle, r = 2.4 * i, reach * np.sqrt((i + 0.5) / 22)
        lying = turned(leaf, float(rng.uniform(0, 360)), (0, 0))
        spot = (r * np.cos(angle), r * np.sin(angle))
        pen.fill(lying + spot, jitter(rng, colour, 0.25))


def _mass(pen: Pen, rng: np.random.Generator, base: str, reach: float) -> None:
    """Draw flat glossy soup, or a heap of grains."""
    colour, soup = BASES[base], "soup" in base or base in ("curry", "porridge")
    outline = ellipse(0, 0, 1.05 * reach) if soup else _heap(reach)
    pen.fill(outline, lit(colour, 1.05), lit(colour, 0.9))
    for _ in range(26):
        x, y = np.clip(rng.normal(0, 0.36, 2), -0.66, 0.66) * reach
        grain = turned(ellipse(x, y, 0.02, 0.008, 8), float(rng.uniform(0, 180)), (x, y))
        pen.fill(grain, lit(colour, 1.3 if soup else 0.85))


def _crust(pen: Pen, base: str, reach: float) -> None:
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
    else:
        for angle in range(0, 360, 45):
            pen.fill(turned(rect(-0.005, 0, 0.005, 0.95 * reach), angle, (0, 0)), (72, 44, 36))


def piece(pen: Pen, name: str) -> None:
    """Draw one topping, about a unit across, centred on the origin."""
    pen.fill(ellipse(0.06, 0.08, 0.48, 0.44, 14), (40, 26, 30), alpha=0.25)
    PIECES[name](pen)


def _tomato(pen: Pen) -> None:
    pen.fill(ellipse(0, 0, 0.5, steps=18), (212, 58, 44))
    pen.fill(ellipse(0, 0, 0.4, steps=18), (236, 104, 78))
    for i in range(4):
        pen.fill(turned(ellipse(0.2, 0, 0.13, 0.09, 9), 90 * i, (0, 0)), (250, 196, 110))


def _egg(pen: Pen) -> None:
    pen.fill(
        smooth([(-0.55, 0), (-0.2, -0.44), (0.4, -0.34), (0.56, 0.1), (0.1, 0.46)]), (252, 250, 244)
    )
    pen.fill(ellipse(0, 0, 0.24, steps=16), (248, 180, 50))


def _olive(pen: Pen) -> None:
    pen.fill(ellipse(0, 0, 0.36, 0.3, 16), (74, 84, 48))
    pen.fill(ellipse(0.05, 0, 0.13, 0.12, 10), (190, 60, 44))


def _prawn(pen: Pen) -> None:
    pen.line(arc(0, 0, 0.34, 0.34, 30, 300, 16), (240, 138, 104), 0.26)
    pen.line(arc(0, 0, 0.34, 0.34, 60, 270, 9), (252, 196, 170), 0.07)
    pen.fill(np.array([(0.16, -0.3), (0.48, -0.5), (0.46, -0.2)]), (224, 100, 78))


def _mushroom(pen: Pen) -> None:
    pen.fill(arc(0, 0.05, 0.48, 0.46, 180, 360, 14), (214, 186, 156))
    pen.fill(rect(-0.15, 0.0, 0.15, 0.45, 0.1), (240, 226, 204))
    pen.line(arc(0, 0.05, 0.3, 0.25, 180, 360, 10), (150, 116, 92), 0.07)


def _lemon(pen: Pen) -> None:
    pen.fill(ellipse(0, 0, 0.5, steps=20), (244, 206, 60))
    pen.fill(ellipse(0, 0, 0.42, steps=20), (252, 244, 200))
    for i in range(6):
        pen.fill(
            turned(np.array([(0.05, 0.0), (0.36, -0.12), (0.36, 0.12)]), 60 * i, (0, 0)),
            (250, 222, 100),
        )


def _berry(pen: Pen) -> None:
    for x, y, colour in (
        (-0.2, 0.1, (66, 66, 120)),
        (0.22, 0.14, (176, 44, 74)),
        (0.0, -0.22, (88, 60, 116)),
    ):
        pen.fill(ellipse(x, y, 0.26, steps=14), colour)
        pen.fill(ellipse(x - 0.07, y - 0.08, 0.07, steps=8), lit(colour, 1.4))


def _basil(pen: Pen) -> None:
    pen.fill(
        smooth([(-0.55, 0), (-0.1, -0.3), (0.4, -0.12), (0.56, 0.04), (0.2, 0.26), (-0.2, 0.26)]),
        (70, 130, 66),
    )
    pen.line([(-0.5, 0), (0.45, 0.02)], (140, 186, 110), 0.06)


def _cucumber(pen: Pen) -> None:
    pen.fill(ellipse(0, 0, 0.48, steps=18), (68, 122, 66))
    pen.fill(ellipse(0, 0, 0.4, steps=18), (212, 232, 170))
    for i in range(5):
        pen.fill(turned(ellipse(0.18, 0, 0.07, 0.035, 8), 72 * i, (0, 0)), (168, 200, 124))


def _carrot(pen: Pen) -> None:
    for y, angle in ((-0.18, 10), (0.12, -14)):
        pen.fill(turned(rect(-0.55, y - 0.1, 0.55, y + 0.1, 0.05), angle, (0, y)), (236, 130, 48))


def _cheese(pen: Pen) -> None:
    pen.fill(np.array([(-0.35, -0.1), (0.0, -0.36), (0.4, -0.14), (0.04, 0.12)]), (252, 240, 200))
    pen.fill(np.array([(-0.35, -0.1), (0.04, 0.12), (0.04, 0.42), (-0.35, 0.2)]), (240, 218, 150))
    pen.fill(np.array([(0.04, 0.12), (0.4, -0.14), (0.4, 0.14), (0.04, 0.42)]), (224, 196, 120))


def _dumpling(pen: Pen) -> None:
    pen.fill(
        np.concatenate([arc(0, 0.14, 0.54, 0.5, 180, 360, 14), [(0.4, 0.34), (-0.4, 0.34)]]),
        (246, 228, 196),
    )
    for angle in range(200, 350, 24):
        pen.line(arc(0, 0.14, 0.5, 0.46, angle, angle + 8, 3), (206, 172, 128), 0.12)


PIECES = {
    "tomatoes": _tomato, "eggs": _egg, "olives": _olive, "prawns": _prawn, "mushrooms": _mushroom,
    "lemon slices": _lemon, "berries": _berry, "basil leaves": _basil,
    "cucumber slices": _cucumber, "carrot sticks": _carrot, "cheese cubes": _cheese,
    "dumplings": _dumpling,
}  # fmt: skip
