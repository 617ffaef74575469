"""Draw labels in a unit square: the background of each layout, and its print."""

from __future__ import annotations

import numpy as np

from toydomains.kit.canvas import Pen
from toydomains.kit.colour import mix
from toydomains.kit.emblem import emblem
from toydomains.kit.outline import arc, ellipse, rect, star
from toydomains.kit.pattern import pattern
from toydomains.packages.spec import Package


def _ground_and_ink(layout: str, palette: tuple[str, str, str]) -> tuple[str, tuple[str, str]]:
    """Return the colour behind the emblem, and the inks of the words and of the emblem."""
    main, second, accent = palette
    if layout in ("framed", "dotted", "striped"):
        return main, (second, second)
    return second, (main, accent)


def _banded(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.fill(rect(0, 0.05, 1, 0.98), palette[1])
    pen.fill(rect(0, 0.33, 1, 0.38), palette[2])


def _round(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.fill(ellipse(0.5, 0.5, 0.56, 0.49), palette[2])
    pen.fill(ellipse(0.5, 0.5, 0.52, 0.46), palette[1])


def _diagonal(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.fill(np.array([(0, 0.2), (1, -0.1), (1, 0.86), (0, 1.1)]), palette[1])
    pen.fill(np.array([(0, 0.12), (1, -0.18), (1, -0.1), (0, 0.2)]), palette[2])


def _arched(pen: Pen, palette: tuple[str, str, str]) -> None:
    for r, colour in ((0.46, palette[2]), (0.41, palette[1])):
        foot = [(0.5 + r, 1.0), (0.5 - r, 1.0)]
        pen.fill(np.concatenate([arc(0.5, 0.5, r, r + 0.01, 180, 360), foot]), colour)


def _wavy(pen: Pen, palette: tuple[str, str, str]) -> None:
    xs = np.linspace(0, 1, 24)
    for y, colour in ((0.0, palette[2]), (0.06, palette[1])):
        crest = np.stack([xs, y + 0.04 * np.sin(xs * 4 * np.pi)], axis=1)
        pen.fill(np.concatenate([crest, [(1, 1), (0, 1)]]), colour)
    low = np.stack([xs, 0.965 + 0.02 * np.sin(xs * 4 * np.pi)], axis=1)
    pen.fill(np.concatenate([low, [(1, 1.01), (0, 1.01)]]), palette[2])


def _rayed(pen: Pen, palette: tuple[str, str, str]) -> None:
    for i in range(12):
        pen.fill(
            np.array([(0.5, 0.5), *arc(0.5, 0.5, 1.2, 1.2, 30 * i, 30 * i + 15, 2)]), palette[2]
        )
    pen.fill(ellipse(0.5, 0.5, 0.47, 0.48), palette[1])


def _framed(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.line(rect(0.06, 0.04, 0.94, 0.98), palette[2], 0.05, closed=True)


def _split(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.fill(rect(0.0, 0, 1, 1), palette[1])
    pen.fill(rect(0.0, 0, 0.09, 1), palette[2])
    pen.fill(rect(0.91, 0, 1, 1), palette[2])


GROUNDS = {
    "banded": _banded, "round": _round, "diagonal": _diagonal, "arched": _arched, "wavy": _wavy,
    "rayed": _rayed, "framed": _framed, "split": _split,
    "striped": lambda pen, p: pattern(pen, "pinstriped", 5, mix(p[0], p[1], 0.3), p[2]),
    "dotted": lambda pen, p: pattern(pen, "dotted", 7, mix(p[0], p[1], 0.3), p[2]),
}  # fmt: skip


def label(p: Package, pen: Pen) -> None:
    """Draw the label of a package: brand, emblem, goods, and on some a badge."""
    GROUNDS[p.layout](pen, p.palette)
    ground, ink = _ground_and_ink(p.layout, p.palette)
    high, low = ((0.08, 0.3), (0.42, 0.78)) if p.high_brand else ((0.62, 0.84), (0.14, 0.52))
    p.lettering.write(pen, p.brand, (0.1, high[0], 0.9, high[1]), ink[0])
    span = (low[1] - low[0]) / 2
    emblem(pen.on(rect(0.5 - span, low[0], 0.5 + span, low[1])), p.emblem, ink[1], ground)
    pen.text(p.goods.upper(), (0.25, 0.86, 0.75, 0.95), ink[0], weight=1, spacing=4)
    if p.badge:
        pen.fill(star(0.83, 0.36, 0.13, tips=10, inner=0.8), p.palette[2])
        pen.fill(ellipse(0.83, 0.36, 0.07, steps=12), "white")
