"""Draw tableware: plates, bowls, pans and boards, with cutlery next to them."""

from __future__ import annotations

import numpy as np

from toydomains.dishes.spec import Dish
from toydomains.kit.canvas import Pen, pick
from toydomains.kit.colour import lit
from toydomains.kit.outline import Points, ellipse, rect, turned


def cutlery(pen: Pen, rng: np.random.Generator) -> None:
    """Draw a knife, a fork or a spoon next to the plate, or nothing."""
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
    else:
        _plate(d, pen, depth)


def _plate(d: Dish, pen: Pen, depth: float) -> None:
    colour, outer = d.china, 0.46 if d.vessel == "square plate" else 0.5
    pen.fill(_outline(d, outer) + (0, depth), lit(colour, 0.66))
    pen.fill(_outline(d, outer), lit(colour, 1.08), lit(colour, 0.92))
    if d.rim == "two-tone":
        pen.fill(_outline(d, outer), d.accent)
    well = 0.43 if d.vessel == "bowl" else 0.36
    pen.fill(_outline(d, well + 0.012), lit(colour, 0.82))
    pen.fill(_outline(d, well), lit(colour, 0.94), lit(colour, 1.06))
    _rim(d, pen, (outer + well) / 2)


def _outline(d: Dish, radius: float) -> Points:
    if d.vessel == "square plate":
        return rect(-radius, -radius, radius, radius, 0.14)
    return ellipse(0, 0, radius, steps=44)


def _rim(d: Dish, pen: Pen, radius: float) -> None:
    """Draw the rim's decoration."""
    if d.rim == "ringed":
        for r in (radius - 0.02, radius + 0.035):
            pen.line(_outline(d, r), d.accent, 0.014, closed=True)
    elif d.rim in ("dotted", "leafy"):
        mark = ellipse(0, 0, 0.022, steps=10)
        if d.rim == "leafy":
            mark = turned(ellipse(0, 0, 0.045, 0.017, 12), 55, (0, 0))
        for angle in range(0, 360, 15):
            pen.fill(turned(mark + (radius, 0), angle, (0, 0)), d.accent)
    elif d.rim == "speckled":
        spots = np.random.default_rng(5).uniform(-0.5, 0.5, (70, 2))
        distance = np.hypot(*spots.T)
        for x, y in spots[(distance > 0.36) & (distance < 0.48)]:
            pen.fill(ellipse(x, y, 0.011, steps=7), d.accent)
