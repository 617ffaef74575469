"""Arrange a dish on its plate."""

from __future__ import annotations

import numpy as np

from toydomains.dishes.food import base_of, piece
from toydomains.dishes.spec import Dish
from toydomains.kit.canvas import Pen
from toydomains.kit.outline import ellipse, turned


def serve(d: Dish, pen: Pen, rng: np.random.Generator) -> None:
    """Draw base, sauce, toppings and garnish; the pieces vary a little in every view."""
    reach = (0.37 if d.vessel in ("plate", "square plate") else 0.42) * d.spread
    base_of(pen, rng, d.base, reach)
    _drizzle(d, pen, reach)
    for x, y in _spots(d, rng) * reach:
        piece(pen.at(x, y, 0.15, float(rng.uniform(0, 360))), d.topping)
    for angle in np.radians((20, 50, 80) + rng.normal(0, 5, 3)):
        x, y = 0.85 * reach * np.cos(angle), 0.85 * reach * np.sin(angle)
        piece(pen.at(x, y, 0.1, float(rng.uniform(0, 360))), d.garnish)


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


def _drizzle(d: Dish, pen: Pen, reach: float) -> None:
    """Draw the sauce, under the toppings."""
    if d.sauce == "zigzag":
        line = np.stack([np.linspace(-0.8, 0.8, 9), np.arange(9) % 2 - 0.5], axis=1)
        pen.line(line * reach, d.sauce_colour, 0.028)
    elif d.sauce == "spiral":
        t = np.linspace(0.4, 5.5 * np.pi, 60)
        line = np.stack([np.cos(t), np.sin(t)], axis=1) * (0.85 * reach * t / t[-1])[:, None]
        pen.line(line, d.sauce_colour, 0.024)
    elif d.sauce == "dotted":
        drop = ellipse(0.9 * reach, 0, 0.024, steps=10)
        for angle in range(0, 360, 36):
            pen.fill(turned(drop, angle, (0, 0)), d.sauce_colour)
