"""Heads, tails and hats of the dressed animals."""

from __future__ import annotations

import numpy as np

from toydomains.illustrations.spec import Character
from toydomains.kit.canvas import Pen
from toydomains.kit.colour import lit
from toydomains.kit.emblem import emblem
from toydomains.kit.outline import arc, ellipse, rect, smooth, turned


def tail(c: Character, pen: Pen, fur: str) -> None:
    """Draw the tail, on the side away from the hand that holds something."""
    tails = {
        "cat": [(0.0, 1.0), (0.3, 1.02), (0.36, 0.8), (0.28, 0.72)],
        "mouse": [(0.0, 1.05), (0.3, 1.12), (0.4, 1.0)],
        "dog": [(0.0, 1.0), (0.26, 0.96), (0.3, 0.86)],
        "pig": [(0.0, 1.0), (0.25, 0.98), (0.22, 0.92), (0.3, 0.94)],
        "fox": [(0.0, 0.98), (0.25, 0.86), (0.42, 0.9), (0.36, 1.06), (0.2, 1.1)],
    }
    if c.animal not in tails:
        return
    points = np.array(tails[c.animal]) * (-c.side, 1) + (0.5, 0)
    if c.animal == "fox":
        pen.fill(smooth(points), fur)
    else:
        pen.line(smooth(points, closed=False), fur, 0.035)


def hat(c: Character, pen: Pen) -> None:
    """Draw the hat, or nothing."""
    main, second, accent = c.palette
    if c.hat == "a top hat":
        pen.fill(rect(0.36, -0.02, 0.64, 0.22), "charcoal")
        pen.fill(rect(0.36, 0.14, 0.64, 0.2), accent)
        pen.fill(rect(0.28, 0.21, 0.72, 0.25, 0.02), "charcoal")
    elif c.hat == "a beret":
        pen.fill(turned(ellipse(0.53, 0.2, 0.2, 0.085), 10, (0.5, 0.2)), accent)
        pen.line([(0.55, 0.13), (0.56, 0.07)], accent, 0.03)
    elif c.hat == "a crown":
        emblem(pen.on(rect(0.36, 0.02, 0.64, 0.27)), "crown", "mustard", "red")
    elif c.hat == "a bobble hat":
        pen.fill(arc(0.5, 0.26, 0.19, 0.2, 180, 360), accent)
        pen.fill(rect(0.3, 0.23, 0.7, 0.29, 0.03), second if second != "cream" else main)
        pen.fill(ellipse(0.5, 0.04, 0.055), main)
    elif c.hat == "a straw hat":
        pen.fill(ellipse(0.5, 0.23, 0.34, 0.06), "mustard")
        pen.fill(arc(0.5, 0.23, 0.17, 0.17, 180, 360), "mustard")
        pen.fill(rect(0.33, 0.17, 0.67, 0.22), main)
    elif c.hat == "a flower":
        emblem(pen.on(rect(0.56, 0.13, 0.74, 0.31)), "flower", accent, "yellow")


def ears(pen: Pen, animal: str, fur: str) -> None:
    """Draw two ears, before the head."""
    for s in (-1, 1):
        place = np.array([s, 1.0])
        ear = {
            "cat": np.array([(0.07, 0.26), (0.19, 0.12), (0.21, 0.36)]),
            "fox": np.array([(0.05, 0.27), (0.2, 0.06), (0.22, 0.38)]),
            "owl": np.array([(0.08, 0.27), (0.2, 0.16), (0.2, 0.34)]),
            "pig": np.array([(0.08, 0.25), (0.22, 0.2), (0.2, 0.38)]),
            "dog": smooth([(0.14, 0.25), (0.24, 0.3), (0.28, 0.52), (0.2, 0.52)]),
            "rabbit": ellipse(0.1, 0.12, 0.055, 0.19),
            "mouse": ellipse(0.2, 0.24, 0.12),
            "bear": ellipse(0.16, 0.25, 0.075),
            "frog": ellipse(0.09, 0.24, 0.075),
        }.get(animal)
        if ear is not None:
            pen.fill(ear * place + (0.5, 0), lit(fur, 0.88))


def muzzle(pen: Pen, animal: str, fur: str) -> None:
    """Draw the middle of the face: snout or beak, mouth, whiskers."""
    pale = lit(fur, 1.5)
    if animal in ("owl", "penguin"):
        if animal == "penguin":
            pen.fill(ellipse(0.5, 0.43, 0.16, 0.14), "white")
        pen.fill(np.array([(0.46, 0.42), (0.54, 0.42), (0.5, 0.5)]), "orange")
        return
    if animal == "pig":
        pen.fill(ellipse(0.5, 0.46, 0.085, 0.06), lit(fur, 0.85))
        for x in (0.47, 0.53):
            pen.fill(ellipse(x, 0.46, 0.014, 0.022, 10), "brown")
    elif animal != "frog":
        pen.fill(ellipse(0.5, 0.48, 0.11, 0.08), pale)
        pen.fill(smooth([(0.46, 0.43), (0.54, 0.43), (0.5, 0.47)]), "black")
    pen.line(arc(0.5, 0.48, 0.1 if animal == "frog" else 0.055, 0.05, 20, 160, 10), "black", 0.014)
    if animal in ("cat", "mouse", "rabbit"):
        for s in (-1, 1):
            for dy in (-0.02, 0.02):
                whisker = [(0.5 + s * 0.1, 0.47 + dy / 2), (0.5 + s * 0.24, 0.46 + 2 * dy)]
                pen.line(whisker, "black", 0.01)
