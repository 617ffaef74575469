"""The dressed animals: body, arms, head."""

from __future__ import annotations

import numpy as np

from toydomains.illustrations.animals import ears, hat, muzzle, tail
from toydomains.illustrations.spec import ANIMALS, Character
from toydomains.kit.canvas import Pen
from toydomains.kit.colour import lit
from toydomains.kit.emblem import emblem
from toydomains.kit.outline import ellipse, mirrored, rect, smooth, turned
from toydomains.kit.pattern import pattern


def body(c: Character, pen: Pen) -> None:
    """Draw the clothed body with its limbs, and the thing that it holds."""
    main, second, accent = c.palette
    fur, w = ANIMALS[c.animal], 0.17 * c.build
    tail(c, pen, fur)
    for x in (0.41, 0.59):
        pen.fill(rect(x - 0.055, 0.98, x + 0.055, 1.2, 0.03), accent if c.trousers else fur)
        shoe = "brown" if c.trousers else lit(fur, 0.8)
        pen.fill(ellipse(x, 1.2, 0.085, 0.045, 16), shoe)
    for side in (-1, 1):
        _arm(c, pen, side, (0.5 + side * w, 0.7))
    half = [(0.5, 0.58), (0.5 + 0.7 * w, 0.6), (0.5 + 1.1 * w, 0.78), (0.5 + w, 1.03), (0.5, 1.05)]
    jumper = smooth(mirrored(half))
    pen.fill(jumper, main)
    with pen.inside(jumper) as cloth:
        knit = cloth.on(rect(0.5 - 1.3 * w, 0.58, 0.5 + 1.3 * w, 1.06))
        pattern(knit, c.wear, c.repeats, second, accent)


def _arm(c: Character, pen: Pen, side: int, shoulder: tuple[float, float]) -> None:
    """Draw an arm; the one on the character's own side holds the thing, raised or not."""
    main, second, accent = c.palette
    holds = side == c.side
    angle = -side * (130 if c.raised and holds else 30)
    sleeve = smooth([(0.0, -0.05), (0.06, 0.0), (0.055, 0.26), (-0.055, 0.26), (-0.06, 0.0)])
    pen.fill(turned(sleeve, angle, (0, 0)) + shoulder, lit(main, 0.88))
    hand = turned(np.array([(0.0, 0.29)]), angle, (0, 0))[0] + shoulder
    x, y = hand
    pen.fill(ellipse(x, y, 0.05, steps=14), ANIMALS[c.animal])
    if holds:
        x, y = hand + (side * 0.05, -0.03)
        emblem(pen.on(rect(x - 0.1, y - 0.1, x + 0.1, y + 0.1)), c.thing, accent, second)


def head(c: Character, pen: Pen) -> None:
    """Draw the head over the body: face, scarf, glasses, hat."""
    fur, accent = ANIMALS[c.animal], c.palette[2]
    ears(pen, c.animal, fur)
    wide = {"pig": 0.23, "frog": 0.25, "fox": 0.22, "mouse": 0.2}.get(c.animal, 0.21)
    pen.fill(ellipse(0.5, 0.4, wide, 0.19, 32), fur)
    if c.scarf:
        end = 0.5 - c.side * 0.1
        pen.fill(rect(0.34, 0.57, 0.66, 0.65, 0.04), accent)
        pen.fill(rect(end - 0.045, 0.62, end + 0.045, 0.82), accent)
    muzzle(pen, c.animal, fur)
    y = 0.23 if c.animal == "frog" else 0.37
    for x in (0.41, 0.59):
        white = {"owl": 0.075, "frog": 0.05}.get(c.animal, 0.03)
        pen.fill(ellipse(x, y, white, steps=18), "white")
        pen.fill(ellipse(x, y, 0.022, 0.026, 12), "black")
        if c.glasses:
            pen.line(ellipse(x, y, 0.08, steps=20), "black", 0.016)
    if c.glasses:
        pen.line([(0.49, y - 0.01), (0.51, y - 0.01)], "black", 0.016)
    hat(c, pen)
