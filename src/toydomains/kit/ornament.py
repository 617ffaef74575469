"""Patterns and emblems of cloth, labels and signs, drawn in a pen's unit square."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toydomains.kit.pen import Colour, Pen, arc, ellipse, mirrored, rect, smooth, star, turned

PATTERNS = (
    "plain", "striped", "pinstriped", "checked", "dotted", "zigzag", "diagonal", "diamond",
    "starry", "flowery", "banded", "scaly",
)  # fmt: skip


def pattern(pen: Pen, kind: str, count: int, colour: Colour, accent: Colour) -> None:
    """Cover the unit square with `count` repeats (a little beyond its edges)."""
    _PATTERN_MAKERS.get(kind, lambda *_: None)(pen, count, colour, accent)


def _stripes(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    for i in range(count):
        y = (i + 0.25) / count
        pen.fill(rect(-0.1, y, 1.1, y + 0.5 / count), colour)


def _pinstripes(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    for i in range(2 * count):
        x = (i + 0.4) / (2 * count)
        pen.fill(rect(x, -0.1, x + 0.16 / count, 1.1), colour)


def _checks(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    step = 1 / count
    for i in range(count):
        pen.fill(rect(i * step, -0.1, (i + 0.5) * step, 1.1), colour, alpha=0.55)
        pen.fill(rect(-0.1, i * step, 1.1, (i + 0.5) * step), colour, alpha=0.55)
    for i in range(count):
        pen.fill(rect((i + 0.7) * step, -0.1, (i + 0.76) * step, 1.1), accent)
        pen.fill(rect(-0.1, (i + 0.7) * step, 1.1, (i + 0.76) * step), accent)


def _grid(count: int):
    for row in range(count + 1):
        for column in range(count + 1):
            yield (column + 0.5 * (row % 2)) / count, (row + 0.2) / count, (row + column) % 2


def _dots(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    for x, y, _ in _grid(count):
        pen.fill(ellipse(x, y, 0.24 / count, steps=12), colour)


def _zigzags(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    xs = np.linspace(-0.1, 1.1, 2 * count + 1)
    swing = (np.arange(xs.size) % 2) * 0.5 / count
    for i in range(count):
        upper = np.stack([xs, i / count + swing], axis=1)
        pen.fill(
            np.concatenate([upper, upper[::-1] + (0, 0.42 / count)]), colour if i % 3 else accent
        )


def _diagonals(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    for i in range(-count, count):
        x, step = i / count, 0.5 / count
        pen.fill(
            np.array([(x, 1.05), (x + step, 1.05), (x + step + 1.1, -0.05), (x + 1.1, -0.05)]),
            colour,
        )


def _diamonds(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    r = 0.5 / count
    for x, y, odd in _grid(count):
        pen.fill(
            np.array([(x, y - r), (x + 0.7 * r, y), (x, y + r), (x - 0.7 * r, y)]),
            (accent if odd else colour),
        )


def _stars(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    for x, y, odd in _grid(count):
        pen.fill(star(x, y, 0.36 / count), accent if odd else colour)


def _flowers(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    r = 0.17 / count
    for x, y, _ in _grid(count):
        petals = star(x, y, 2.2 * r, tips=5, inner=0.55)
        pen.fill(smooth(petals, steps=3), colour)
        pen.fill(ellipse(x, y, 0.8 * r, steps=8), accent)


def _bands(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    middle = 0.3 + 0.06 * count
    pen.fill(rect(-0.1, middle - 0.13, 1.1, middle + 0.13), colour)
    pen.fill(rect(-0.1, middle - 0.19, 1.1, middle - 0.16), accent)
    pen.fill(rect(-0.1, middle + 0.16, 1.1, middle + 0.19), accent)


def _scales(pen: Pen, count: int, colour: Colour, accent: Colour) -> None:
    r = 0.5 / count
    for row in range(2 * count, -1, -1):
        for column in range(count + 1):
            x, y = (column + 0.5 * (row % 2)) / count, row * r
            pen.fill(ellipse(x, y, r, steps=14), colour if row % 2 else accent)


_PATTERN_MAKERS: dict[str, Callable[[Pen, int, Colour, Colour], None]] = {
    "striped": _stripes, "pinstriped": _pinstripes, "checked": _checks, "dotted": _dots,
    "zigzag": _zigzags, "diagonal": _diagonals, "diamond": _diamonds, "starry": _stars,
    "flowery": _flowers, "banded": _bands, "scaly": _scales,
}  # fmt: skip


def _heart(pen: Pen, colour: Colour, ground: Colour) -> None:
    half = [(0.5, 0.3), (0.62, 0.14), (0.84, 0.14), (0.95, 0.34), (0.82, 0.6), (0.5, 0.92)]
    pen.fill(smooth(mirrored(half), steps=4), colour)


def _star(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(star(0.5, 0.53, 0.5), colour)


def _sun(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(star(0.5, 0.5, 0.5, tips=11, inner=0.62), colour)
    pen.fill(ellipse(0.5, 0.5, 0.26), ground)
    pen.fill(ellipse(0.5, 0.5, 0.2), colour)


def _moon(pen: Pen, colour: Colour, ground: Colour) -> None:
    outer, inner = arc(0.5, 0.5, 0.45, 0.45, 60, 300), arc(0.68, 0.5, 0.4, 0.4, 282, 78, 14)
    pen.fill(np.concatenate([outer, inner]), colour)


def _leaf(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(
        smooth([(0.5, 0.02), (0.82, 0.36), (0.72, 0.72), (0.5, 0.86), (0.28, 0.72), (0.18, 0.36)]),
        colour,
    )
    pen.line([(0.5, 0.2), (0.5, 1.0)], ground, 0.05)
    for y in (0.42, 0.6):
        pen.line([(0.3, y - 0.12), (0.5, y + 0.06), (0.7, y - 0.12)], ground, 0.04)


def _fish(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(ellipse(0.42, 0.5, 0.4, 0.25), colour)
    pen.fill(np.array([(0.72, 0.5), (1.0, 0.24), (0.94, 0.5), (1.0, 0.76)]), colour)
    pen.fill(ellipse(0.2, 0.44, 0.05), ground)
    pen.line(arc(0.12, 0.5, 0.28, 0.24, -50, 50, 8), ground, 0.04)


def _anchor(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.line(ellipse(0.5, 0.14, 0.1, steps=14), colour, 0.07)
    pen.line([(0.5, 0.22), (0.5, 0.95)], colour, 0.1)
    pen.line([(0.28, 0.36), (0.72, 0.36)], colour, 0.09)
    pen.line(arc(0.5, 0.5, 0.38, 0.42, 10, 170), colour, 0.1)


def _bolt(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(
        np.array([(0.6, 0.0), (0.2, 0.56), (0.46, 0.56), (0.36, 1.0), (0.8, 0.4), (0.53, 0.4)]),
        colour,
    )


def _flower(pen: Pen, colour: Colour, ground: Colour) -> None:
    for i in range(6):
        pen.fill(turned(ellipse(0.5, 0.22, 0.15, 0.21, 14), 60 * i, (0.5, 0.5)), colour)
    pen.fill(ellipse(0.5, 0.5, 0.14, steps=14), ground)


def _mountain(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(np.array([(0.0, 0.9), (0.4, 0.14), (0.8, 0.9)]), colour)
    pen.fill(
        np.array([(0.29, 0.35), (0.4, 0.14), (0.51, 0.35), (0.44, 0.43), (0.38, 0.36)]), ground
    )
    pen.fill(np.array([(0.5, 0.9), (0.76, 0.44), (1.0, 0.9)]), colour)


def _cup(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.line(ellipse(0.76, 0.58, 0.16, 0.14, 16), colour, 0.08)
    pen.fill(np.array([(0.14, 0.36), (0.78, 0.36), (0.68, 0.86), (0.24, 0.86)]), colour)
    for x in (0.34, 0.56):
        pen.line(
            smooth([(x, 0.28), (x + 0.05, 0.2), (x - 0.05, 0.12), (x, 0.02)], closed=False),
            colour,
            0.05,
        )


def _tree(pen: Pen, colour: Colour, ground: Colour) -> None:
    for y, r in ((0.0, 0.22), (0.22, 0.32), (0.46, 0.42)):
        pen.fill(np.array([(0.5, y), (0.5 + r, y + 0.36), (0.5 - r, y + 0.36)]), colour)
    pen.fill(rect(0.43, 0.8, 0.57, 1.0), colour)


def _cat(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(
        mirrored([(0.5, 0.24), (0.66, 0.24), (0.9, 0.04), (0.9, 0.5), (0.74, 0.84), (0.5, 0.9)]),
        colour,
    )
    for x in (0.34, 0.66):
        pen.fill(ellipse(x, 0.5, 0.06, 0.08, 12), ground)
    pen.fill(np.array([(0.44, 0.64), (0.56, 0.64), (0.5, 0.71)]), ground)


def _crown(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(mirrored([(0.5, 0.12), (0.68, 0.5), (0.95, 0.2), (0.84, 0.84), (0.5, 0.84)]), colour)
    pen.fill(rect(0.2, 0.7, 0.8, 0.76), ground)


def _boat(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(np.array([(0.05, 0.68), (0.95, 0.68), (0.78, 0.92), (0.22, 0.92)]), colour)
    pen.fill(np.array([(0.48, 0.04), (0.48, 0.6), (0.1, 0.6)]), colour)
    pen.fill(np.array([(0.55, 0.16), (0.85, 0.6), (0.55, 0.6)]), colour)


def _mushroom(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(smooth([(0.42, 0.5), (0.58, 0.5), (0.64, 0.94), (0.36, 0.94)]), colour)
    pen.fill(arc(0.5, 0.56, 0.46, 0.5, 180, 360), colour)
    for x, y, r in ((0.3, 0.38, 0.07), (0.54, 0.24, 0.08), (0.72, 0.42, 0.06)):
        pen.fill(ellipse(x, y, r, steps=12), ground)


def _apple(pen: Pen, colour: Colour, ground: Colour) -> None:
    half = [(0.5, 0.3), (0.7, 0.22), (0.92, 0.42), (0.84, 0.8), (0.62, 0.96), (0.5, 0.92)]
    pen.fill(smooth(mirrored(half), steps=4), colour)
    pen.line([(0.5, 0.32), (0.55, 0.1)], colour, 0.06)
    pen.fill(turned(ellipse(0.7, 0.12, 0.15, 0.07, 12), -20, (0.7, 0.12)), colour)


def _wave(pen: Pen, colour: Colour, ground: Colour) -> None:
    xs = np.linspace(0, 1, 30)
    for y in (0.25, 0.5, 0.75):
        pen.line(np.stack([xs, y + 0.08 * np.sin(xs * 4 * np.pi)], axis=1), colour, 0.1)


def _bird(pen: Pen, colour: Colour, ground: Colour) -> None:
    pen.fill(
        smooth([(0.1, 0.4), (0.3, 0.2), (0.5, 0.36), (0.98, 0.34), (0.7, 0.74), (0.34, 0.74)]),
        colour,
    )
    pen.fill(np.array([(0.12, 0.3), (-0.04, 0.4), (0.12, 0.44)]), colour)
    pen.line(smooth([(0.45, 0.48), (0.62, 0.62), (0.8, 0.46)], closed=False), ground, 0.05)
    pen.fill(ellipse(0.25, 0.34, 0.035, steps=10), ground)
    pen.line([(0.46, 0.72), (0.44, 0.95)], colour, 0.05)


EMBLEMS: dict[str, Callable[[Pen, Colour, Colour], None]] = {
    "heart": _heart, "star": _star, "sun": _sun, "moon": _moon, "leaf": _leaf, "fish": _fish,
    "anchor": _anchor, "lightning": _bolt, "flower": _flower, "mountain": _mountain, "cup": _cup,
    "tree": _tree, "cat": _cat, "crown": _crown, "boat": _boat, "mushroom": _mushroom,
    "apple": _apple, "wave": _wave, "bird": _bird,
}  # fmt: skip


def emblem(pen: Pen, name: str, colour: Colour, ground: Colour) -> None:
    """Draw the named emblem in the unit square, its details in the ground's colour."""
    EMBLEMS[name](pen, colour, ground)
