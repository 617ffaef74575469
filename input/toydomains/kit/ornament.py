"""Patterns and emblems of cloth, labels and signs, drawn in a pen's unit square."""

from itertools import product

import numpy as np

from toydomains.kit.outline import arc, around, ellipse, mirrored, rect, smooth, star, turned
from toydomains.kit.pen import Colour, Mark, Pen

PATTERNS = (
    "plain", "striped", "pinstriped", "checked", "dotted", "zigzag", "diagonal", "diamond",
    "starry", "flowery", "banded", "scaly",
)  # fmt: skip


def pattern(pen: Pen, kind: str, count: int, colour: Colour, accent: Colour) -> None:
    """Cover the unit square with `count` repeats (a little beyond its edges)."""
    step, half = 1 / count, 0.5 / count
    if kind == "striped":
        for i in range(count):
            y = (i + 0.25) / count
            pen.fill(rect(-0.1, y, 1.1, y + half), colour)
    elif kind == "pinstriped":
        for i in range(2 * count):
            x = (i + 0.4) / (2 * count)
            pen.fill(rect(x, -0.1, x + 0.16 / count, 1.1), colour)
    elif kind == "checked":
        for i in range(count):
            pen.fill(rect(i * step, -0.1, (i + 0.5) * step, 1.1), colour, alpha=0.55)
            pen.fill(rect(-0.1, i * step, 1.1, (i + 0.5) * step), colour, alpha=0.55)
        for i in range(count):
            pen.fill(rect((i + 0.7) * step, -0.1, (i + 0.76) * step, 1.1), accent)
            pen.fill(rect(-0.1, (i + 0.7) * step, 1.1, (i + 0.76) * step), accent)
    elif kind == "zigzag":
        xs = np.linspace(-0.1, 1.1, 2 * count + 1)
        swing = (np.arange(xs.size) % 2) * 0.5 / count
        for i in range(count):
            upper = np.stack([xs, i / count + swing], axis=1)
            band = np.concatenate([upper, upper[::-1] + (0, 0.42 / count)])
            pen.fill(band, colour if i % 3 else accent)
    elif kind == "diagonal":
        for x in (i / count for i in range(-count, count)):
            foot = [(x, 1.05), (x + half, 1.05), (x + half + 1.1, -0.05), (x + 1.1, -0.05)]
            pen.fill(foot, colour)
    elif kind == "banded":
        y = 0.3 + 0.06 * count
        pen.fill(rect(-0.1, y - 0.13, 1.1, y + 0.13), colour)
        pen.fill(rect(-0.1, y - 0.19, 1.1, y - 0.16), accent)
        pen.fill(rect(-0.1, y + 0.16, 1.1, y + 0.19), accent)
    elif kind == "scaly":
        for row, column in product(range(2 * count, -1, -1), range(count + 1)):
            x, y = (column + 0.5 * (row % 2)) / count, row * half
            pen.fill(ellipse(x, y, half, steps=14), colour if row % 2 else accent)
    elif kind != "plain":
        for row, column in product(range(count + 1), repeat=2):
            x, y = (column + 0.5 * (row % 2)) / count, (row + 0.2) / count
            turn = accent if (row + column) % 2 else colour
            if kind == "dotted":
                pen.fill(ellipse(x, y, 0.24 / count, steps=12), colour)
            elif kind == "starry":
                pen.fill(star(x, y, 0.36 / count), turn)
            elif kind == "diamond":
                w = 0.7 * half
                pen.fill([(x, y - half), (x + w, y), (x, y + half), (x - w, y)], turn)
            else:
                r = 0.17 / count
                pen.fill(smooth(star(x, y, 2.2 * r, tips=5, inner=0.55), steps=3), colour)
                pen.fill(ellipse(x, y, 0.8 * r, steps=8), accent)


_HEART = [(0.5, 0.3), (0.62, 0.14), (0.84, 0.14), (0.95, 0.34), (0.82, 0.6), (0.5, 0.92)]
_MOON_EDGE, _MOON_HOLLOW = arc(0.5, 0.5, 0.45, 0.45, 60, 300), arc(0.68, 0.5, 0.4, 0.4, 282, 78, 14)
_LEAF = [(0.5, 0.02), (0.82, 0.36), (0.72, 0.72), (0.5, 0.86), (0.28, 0.72), (0.18, 0.36)]
_BOLT = [(0.6, 0.0), (0.2, 0.56), (0.46, 0.56), (0.36, 1.0), (0.8, 0.4), (0.53, 0.4)]
_STEAM = [(0, 0.28), (0.05, 0.2), (-0.05, 0.12), (0, 0.02)]
_CAT = [(0.5, 0.24), (0.66, 0.24), (0.9, 0.04), (0.9, 0.5), (0.74, 0.84), (0.5, 0.9)]
_APPLE = [(0.5, 0.3), (0.7, 0.22), (0.92, 0.42), (0.84, 0.8), (0.62, 0.96), (0.5, 0.92)]
_BIRD = [(0.1, 0.4), (0.3, 0.2), (0.5, 0.36), (0.98, 0.34), (0.7, 0.74), (0.34, 0.74)]
_XS = np.linspace(0, 1, 30)
_INK, _GROUND = "ink", "ground"  # the two colours of an emblem
EMBLEMS: dict[str, list[Mark]] = {
    "heart": [(smooth(mirrored(_HEART), 4), _INK)],
    "star": [(star(0.5, 0.53, 0.5), _INK)],
    "sun": [
        (star(0.5, 0.5, 0.5, tips=11, inner=0.62), _INK),
        (ellipse(0.5, 0.5, 0.26), _GROUND),
        (ellipse(0.5, 0.5, 0.2), _INK),
    ],
    "moon": [(np.concatenate([_MOON_EDGE, _MOON_HOLLOW]), _INK)],
    "leaf": [
        (smooth(_LEAF), _INK),
        ([(0.5, 0.2), (0.5, 1.0)], _GROUND, 0.05),
        *(
            ([(0.3, y - 0.12), (0.5, y + 0.06), (0.7, y - 0.12)], _GROUND, 0.04)
            for y in (0.42, 0.6)
        ),
    ],
    "fish": [
        (ellipse(0.42, 0.5, 0.4, 0.25), _INK),
        ([(0.72, 0.5), (1.0, 0.24), (0.94, 0.5), (1.0, 0.76)], _INK),
        (ellipse(0.2, 0.44, 0.05), _GROUND),
        (arc(0.12, 0.5, 0.28, 0.24, -50, 50, 8), _GROUND, 0.04),
    ],
    "anchor": [
        (ellipse(0.5, 0.14, 0.1, steps=14), _INK, 0.07),
        ([(0.5, 0.22), (0.5, 0.95)], _INK, 0.1),
        ([(0.28, 0.36), (0.72, 0.36)], _INK, 0.09),
        (arc(0.5, 0.5, 0.38, 0.42, 10, 170), _INK, 0.1),
    ],
    "lightning": [(_BOLT, _INK)],
    "flower": [
        *((petal, _INK) for petal in around(ellipse(0.5, 0.22, 0.15, 0.21, 14), 6, (0.5, 0.5))),
        (ellipse(0.5, 0.5, 0.14, steps=14), _GROUND),
    ],
    "mountain": [
        ([(0.0, 0.9), (0.4, 0.14), (0.8, 0.9)], _INK),
        ([(0.29, 0.35), (0.4, 0.14), (0.51, 0.35), (0.44, 0.43), (0.38, 0.36)], _GROUND),
        ([(0.5, 0.9), (0.76, 0.44), (1.0, 0.9)], _INK),
    ],
    "cup": [
        (ellipse(0.76, 0.58, 0.16, 0.14, 16), _INK, 0.08),
        ([(0.14, 0.36), (0.78, 0.36), (0.68, 0.86), (0.24, 0.86)], _INK),
        *((smooth(np.array(_STEAM) + (x, 0), closed=False), _INK, 0.05) for x in (0.34, 0.56)),
    ],
    "tree": [
        *(
            ([(0.5, y), (0.5 + r, y + 0.36), (0.5 - r, y + 0.36)], _INK)
            for y, r in ((0.0, 0.22), (0.22, 0.32), (0.46, 0.42))
        ),
        (rect(0.43, 0.8, 0.57, 1.0), _INK),
    ],
    "cat": [
        (mirrored(_CAT), _INK),
        *((ellipse(x, 0.5, 0.06, 0.08, 12), _GROUND) for x in (0.34, 0.66)),
        ([(0.44, 0.64), (0.56, 0.64), (0.5, 0.71)], _GROUND),
    ],
    "crown": [
        (mirrored([(0.5, 0.12), (0.68, 0.5), (0.95, 0.2), (0.84, 0.84), (0.5, 0.84)]), _INK),
        (rect(0.2, 0.7, 0.8, 0.76), _GROUND),
    ],
    "boat": [
        ([(0.05, 0.68), (0.95, 0.68), (0.78, 0.92), (0.22, 0.92)], _INK),
        ([(0.48, 0.04), (0.48, 0.6), (0.1, 0.6)], _INK),
        ([(0.55, 0.16), (0.85, 0.6), (0.55, 0.6)], _INK),
    ],
    "mushroom": [
        (smooth([(0.42, 0.5), (0.58, 0.5), (0.64, 0.94), (0.36, 0.94)]), _INK),
        (arc(0.5, 0.56, 0.46, 0.5, 180, 360), _INK),
        *(
            (ellipse(x, y, r, steps=12), _GROUND)
            for x, y, r in ((0.3, 0.38, 0.07), (0.54, 0.24, 0.08), (0.72, 0.42, 0.06))
        ),
    ],
    "apple": [
        (smooth(mirrored(_APPLE), 4), _INK),
        ([(0.5, 0.32), (0.55, 0.1)], _INK, 0.06),
        (turned(ellipse(0.7, 0.12, 0.15, 0.07, 12), -20, (0.7, 0.12)), _INK),
    ],
    "wave": [
        (np.stack([_XS, y + 0.08 * np.sin(_XS * 4 * np.pi)], axis=1), _INK, 0.1)
        for y in (0.25, 0.5, 0.75)
    ],
    "bird": [
        (smooth(_BIRD), _INK),
        ([(0.12, 0.3), (-0.04, 0.4), (0.12, 0.44)], _INK),
        (smooth([(0.45, 0.48), (0.62, 0.62), (0.8, 0.46)], closed=False), _GROUND, 0.05),
        (ellipse(0.25, 0.34, 0.035, steps=10), _GROUND),
        ([(0.46, 0.72), (0.44, 0.95)], _INK, 0.05),
    ],
}


def emblem(pen: Pen, name: str, colour: Colour, ground: Colour) -> None:
    """Draw the named emblem in the unit square, its details in the ground's colour."""
    colours = {_INK: colour, _GROUND: ground}
    pen.draw((points, colours[role], *width) for points, role, *width in EMBLEMS[name])
