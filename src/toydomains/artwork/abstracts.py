"""Abstract paintings: blocks, circles, paper cut-outs."""

from __future__ import annotations

import numpy as np

from toydomains.artwork.spec import Painting
from toydomains.kit.canvas import Pen, pick
from toydomains.kit.colour import RGB, jitter
from toydomains.kit.outline import ellipse, rect, smooth, turned


def blocks(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    """Draw a recursively split rectangle, with dark bars between the cells."""
    cells = [(0.0, 0.0, p.shape, 1.0)]
    for _ in range(p.elements + 2):
        i = int(np.argmax([(c[2] - c[0]) * (c[3] - c[1]) * rng.uniform(0.4, 1) for c in cells]))
        x0, y0, x1, y1 = cells.pop(i)
        t = float(rng.uniform(0.25, 0.75))
        if x1 - x0 > y1 - y0:
            cells += [(x0, y0, x0 + t * (x1 - x0), y1), (x0 + t * (x1 - x0), y0, x1, y1)]
        else:
            cells += [(x0, y0, x1, y0 + t * (y1 - y0)), (x0, y0 + t * (y1 - y0), x1, y1)]
    for x0, y0, x1, y1 in cells:
        colour = p.scheme[int(rng.choice(5, p=(0.4, 0.2, 0.17, 0.18, 0.05)))]
        pen.fill(rect(x0, y0, x1, y1), jitter(rng, colour, 0.05))
    for x0, y0, x1, y1 in cells:
        pen.line(rect(x0, y0, x1, y1), p.scheme[4], 0.022, closed=True)


def circles(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    """Draw targets of several rings, and thin straight lines."""
    ground(pen, rng, p, p.scheme[0], 12)
    for _ in range(p.elements + 2):
        x, y, r = rng.uniform(0, p.shape), rng.uniform(0, 1), float(rng.uniform(0.08, 0.26))
        for share in (1.0, 0.75, 0.5, 0.25)[: int(rng.integers(1, 5))]:
            pen.fill(ellipse(x, y, r * share), pick(rng, p.scheme[1:]))
    for _ in range(p.elements):
        x, y = rng.uniform(0, p.shape), rng.uniform(0, 1)
        angle = rng.uniform(0, np.pi)
        pen.line([(x, y), (x + 0.6 * np.cos(angle), y + 0.6 * np.sin(angle))], p.scheme[4], 0.014)


def cutouts(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    """Draw lobed paper leaves on coloured fields."""
    columns = 2 + p.elements % 3
    for i in range(columns):
        for j in range(2):
            x0, x1 = p.shape * i / columns, p.shape * (i + 1) / columns
            pen.fill(rect(x0, j / 2, x1, (j + 1) / 2), p.scheme[int(rng.integers(0, 5))])
    for _ in range(p.elements):
        x, y = rng.uniform(0.12, p.shape - 0.12), rng.uniform(0.15, 0.85)
        lobes, turn = int(rng.integers(4, 8)), float(rng.uniform(0, 360))
        angle = np.linspace(0, 2 * np.pi, 4 * lobes, endpoint=False)
        r = 0.16 * (0.62 + 0.38 * np.cos(lobes * angle)) * float(rng.uniform(0.7, 1.3))
        frond = np.stack([x + r * np.cos(angle), y + 1.35 * r * np.sin(angle)], axis=1)
        pen.fill(turned(smooth(frond, 3), turn, (x, y)), p.scheme[int(rng.integers(0, 5))])


def ground(
    pen: Pen, rng: np.random.Generator, p: Painting, colour: str | RGB, strokes: int = 26
) -> None:
    """Paint the ground with broad strokes of nearly one colour."""
    pen.fill(rect(0, 0, p.shape, 1), colour)
    for _ in range(strokes):
        x, y = rng.uniform(-0.1, p.shape), rng.uniform(0, 1)
        dab = rect(x, y, x + float(rng.uniform(0.15, 0.4)), y + 0.045, 0.02)
        pen.fill(turned(dab, float(rng.normal(0, 8)), (x, y)), jitter(rng, colour, 0.1))
