"""Build parts of landmarks: storeys, openings, roofs, clocks."""

from __future__ import annotations

from itertools import product
from typing import TypeAlias

import numpy as np

from toydomains.kit.colour import RGB, lit
from toydomains.kit.outline import Points, arc, ellipse, rect
from toydomains.kit.solid import Face, Solid, box, turning
from toydomains.landmarks.spec import Landmark

Corner: TypeAlias = tuple[float, float, float]

NIGHT = (64, 66, 88)  # behind windows


def crown(m: Landmark, x: float, y: float, z: float, radius: float) -> list[Solid]:
    """Return a roof of half side `radius` at height `y`."""
    r = radius
    if m.top == "domed":
        angles = np.radians(np.linspace(0, 84, 6))
        dome = [(r * np.cos(t), y + 1.05 * r * np.sin(t)) for t in angles]
        return [turning(x, z, dome, m.cover), _finial(x, y + 1.05 * r, z, r, m.cover)]
    if m.top == "pointed":
        return [turning(x, z, [(1.12 * r, y), (0.01, y + 2.6 * r)], m.cover, 4)]
    if m.top == "onion":
        bulb = [(0.75, 0.0), (1.1, 0.4), (1.05, 0.7), (0.6, 1.15)]
        spike = [(0.6, 1.15), (0.2, 1.5), (0.01, 2.1)]
        return [
            turning(x, z, [(k * r, y + t * r) for k, t in shape], m.cover)
            for shape in (bulb, spike)
        ]
    if m.top == "stepped":
        rows = ((1.05, 0.0, 0.35), (0.75, 0.35, 0.7), (0.42, 0.7, 1.2))
        return [
            turning(x, z, [(k * r, y + b * r), (k * r, y + t * r)], m.cover, 4) for k, b, t in rows
        ]
    return _battlements(x, y, z, r, m.cover)


def openings(m: Landmark, face: Face, rows: int, columns: int, low: float = 0.08) -> None:
    """Draw a grid of windows on a wall."""
    for row in range(rows):
        for column in range(columns):
            u, v = (column + 0.5) / columns, low + (1 - low) * (row + 0.5) / rows
            face.decal(_window(m, u, v, 0.24 / columns, 0.3 / rows), NIGHT)


def _window(m: Landmark, u: float, v: float, w: float, h: float) -> Points:
    """Return one window around (u, v), about 2 w wide and 2 h high."""
    if m.windows == "arched":
        return np.concatenate(
            [arc(u, v - 0.3 * h, w, 0.7 * h, 180, 360, 9), [(u + w, v + h), (u - w, v + h)]]
        )
    if m.windows == "round":
        return ellipse(u, v, 1.1 * w, 0.8 * h, 14)
    if m.windows == "slit":
        return rect(u - 0.4 * w, v - h, u + 0.4 * w, v + h)
    return rect(u - w, v - 0.8 * h, u + w, v + 0.8 * h)


def storey(m: Landmark, low: Corner, high: Corner, rows: int = 1, columns: int = 3) -> Solid:
    """Return a block of wall with windows all round, and a course of darker stone if banded."""
    block = box(low, high, m.wall)
    for i in (0, 1, 3):
        face = block.faces[i]
        if m.banded:
            for v in np.arange(rows) / rows:
                face.decal(rect(0, v, 1, v + 0.08 / rows), lit(m.wall, 0.72))
        openings(m, face, rows, columns)
    return block


def _finial(x: float, y: float, z: float, r: float, colour: RGB) -> Solid:
    shape = [(0.12 * r, y), (0.12 * r, y + 0.18 * r), (0.01, y + 0.6 * r)]
    return turning(x, z, shape, lit(colour, 0.85), 8)


def _battlements(x: float, y: float, z: float, r: float, colour: RGB) -> list[Solid]:
    solids = [turning(x, z, [(1.1 * r, y), (1.1 * r, y + 0.18 * r)], colour, 4)]
    side, low, high, steps = 0.18 * r, y + 0.18 * r, y + 0.42 * r, (-0.9, -0.3, 0.3, 0.9)
    for u, v in product(steps, steps):
        # Merlons are on the rim only.
        if max(abs(u), abs(v)) > 0.5:
            px, pz = x + u * r, z + v * r
            solids.append(box((px - side, low, pz - side), (px + side, high, pz + side), colour))
    return solids


def plinth(m: Landmark, w: float, d: float, steps: int = 2) -> list[Solid]:
    """Return steps all round a ground plan of half-sizes `w` and `d`."""
    solids = []
    for i in range(steps):
        out = 0.07 * (steps - i)
        low, high = (-w - out, 0.05 * i, -d - out), (w + out, 0.05 * (i + 1), d + out)
        solids.append(box(low, high, lit(m.wall, 0.92)))
    return solids


def clock(m: Landmark, face: Face, u: float, v: float, r: float, stretch: float) -> None:
    """Draw the clock of a landmark that has one; `stretch` makes it round on an oblong wall."""
    if m.clock:
        face.decal(ellipse(u, v, r * stretch, r, 18), lit(m.wall, 0.6))
        face.decal(ellipse(u, v, 0.82 * r * stretch, 0.82 * r, 18), (250, 246, 230))
        face.decal(rect(u - 0.012, v - 0.6 * r, u + 0.012, v), (40, 40, 50))
        face.decal(rect(u, v - 0.012, u + 0.5 * r * stretch, v + 0.012), (40, 40, 50))


def gable(w: float, y: float, d: float, rise: float, m: Landmark) -> Solid:
    """Return a saddle roof whose gable faces the front."""
    a0, b0, c0, d0 = (-w, y, d), (w, y, d), (w, y, -d), (-w, y, -d)
    e, f = (0.0, y + rise, d), (0.0, y + rise, -d)
    pediment = Face(np.array([a0, b0, e]), lit(m.wall, 1.1))
    faces = [(b0, c0, f, e), (d0, a0, e, f), (c0, d0, f)]
    return Solid([pediment, *(Face(np.array(points), m.cover) for points in faces)])
