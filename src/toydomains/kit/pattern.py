"""Patterns that cover a pen's unit square: of cloth, labels, plates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toydomains.kit.canvas import Colour, Pen
from toydomains.kit.outline import ellipse, rect, smooth, star

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
