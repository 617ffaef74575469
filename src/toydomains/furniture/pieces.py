"""Pieces of furniture, each a list of solids; sizes in metres."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from toydomains.furniture.joinery import BRASS, drawers, rest, stand, vase
from toydomains.furniture.spec import FABRICS, Furniture
from toydomains.furniture.upholstery import armchair, bed, sofa
from toydomains.kit.canvas import pick
from toydomains.kit.colour import lit
from toydomains.kit.outline import ellipse, rect
from toydomains.kit.solid import Solid, box, turning


def _chair(f: Furniture) -> list[Solid]:
    w, seat, top = 0.24 * f.wide, 0.45, 0.95 * f.tall
    cushion = box((-w, seat + 0.04, -w + 0.06), (w, seat + 0.1, w), f.fabric)
    base = box((-w, seat, -w), (w, seat + 0.04, w), f.timber)
    return [*stand(f, w, w, seat), base, cushion, *rest(f, w, -w, seat + 0.1, top)]


def _stool(f: Furniture) -> list[Solid]:
    w, seat = 0.2 * f.wide, 0.62 * f.tall
    sides = 4 if f.square else 16
    pad = turning(0, 0, [(w, seat), (w + 0.03, seat + 0.04), (w, seat + 0.1)], f.fabric, sides)
    rung = box((-w, 0.2, -0.02), (w, 0.24, 0.02), f.timber)
    return [*stand(f, w, w, seat), rung, pad]


def _bench(f: Furniture) -> list[Solid]:
    w, d, seat = 0.65 * f.wide, 0.22, 0.45
    step = 2 * d / f.parts
    slats = [
        box((-w, seat, -d + i * step), (w, seat + 0.04, -d + (i + 0.78) * step), f.timber)
        for i in range(f.parts)
    ]
    solids = [*stand(f, w, d, seat), *slats]
    return solids + (rest(f, w, -d, seat + 0.04, 0.85 * f.tall) if f.buttons else [])


def _table(f: Furniture) -> list[Solid]:
    w, d, top = 0.65 * f.wide, 0.4, 0.72
    if f.columns == 1:
        slab = turning(0, 0, [(w, top), (w, top + 0.05)], f.timber, 24)
        foot = turning(0, 0, [(0.34, 0.0), (0.06, 0.08), (0.05, top)], lit(f.timber, 0.9), 12)
        return [foot, slab, *vase(f, top + 0.05)]
    slab = box((-w, top, -d), (w, top + 0.05, d), f.timber)
    shelf = box((-w + 0.12, 0.2, -d + 0.12), (w - 0.12, 0.23, d - 0.12), lit(f.timber, 0.9))
    return [*stand(f, w, d, top), *[shelf] * (f.columns == 3), slab, *vase(f, top + 0.05)]


def _desk(f: Furniture) -> list[Solid]:
    w, d, top = 0.62 * f.wide, 0.3, 0.72
    slab = box((-w, top, -d), (w, top + 0.045, d), f.timber)
    chest = box((w - 0.38, 0.1, -d + 0.03), (w - 0.02, top, d - 0.02), f.timber)
    drawers(chest, f, f.parts, 1)
    legs = [leg for leg in stand(f, w, d, top) if leg.high[0] < w - 0.4]
    screen = box((-w * 0.5, top + 0.045, -0.1), (-w * 0.5 + 0.4, top + 0.32, -0.07), "charcoal")
    screen.faces[0].decal(rect(0.05, 0.07, 0.95, 0.93), lit(f.fabric, 1.1))
    return [*legs, chest, slab, *([screen] if f.buttons else [])]


def _bookcase(f: Furniture) -> list[Solid]:
    w, d, top, t = 0.42 * f.wide, 0.15, 1.6 * f.tall, 0.035
    back = box((-w, 0, -d), (w, top, -d + 0.02), lit(f.timber, 0.8))
    sides = [box((x, 0, -d + 0.02), (x + t, top, d), f.timber) for x in (-w, w - t)]
    step, solids = (top - t) / f.parts, [back, *sides]
    # The class's own books: the same in every view.
    rng = np.random.default_rng([f.parts, f.columns, int(f.wide * 1e4), int(f.tall * 1e4)])
    for i in range(f.parts + 1):
        solids.append(box((-w + t, i * step, -d + 0.02), (w - t, i * step + t, d), f.timber))
        if i < f.parts:
            solids += _books(rng, w - 0.06, i * step + t, 0.9 * step, d)
    return solids


def _books(rng: np.random.Generator, w: float, y: float, high: float, d: float) -> Iterator[Solid]:
    """A row of books from -w to somewhere before w, at most `high`."""
    x, end = -w, w - 0.08 - 0.3 * rng.random()
    while x < end:
        thick, tall = float(rng.uniform(0.04, 0.09)), float(rng.uniform(0.45, 0.85)) * high
        yield box((x, y, -d + 0.04), (x + thick, y + tall, d - 0.06), pick(rng, FABRICS))
        x += thick + 0.004


def _dresser(f: Furniture) -> list[Solid]:
    w, d, top = (0.3 + 0.12 * f.columns) * f.wide, 0.24, 0.9 * f.tall
    body = box((-w, 0.14, -d), (w, top, d), f.timber)
    drawers(body, f, f.parts, f.columns)
    slab = box((-w - 0.03, top, -d - 0.02), (w + 0.03, top + 0.04, d + 0.03), lit(f.timber, 0.85))
    return [*stand(f, w, d, 0.14), body, slab, *vase(f, top + 0.04)]


def _sideboard(f: Furniture) -> list[Solid]:
    w, d, top = 0.75 * f.wide, 0.22, 0.66 * f.tall
    body = box((-w, 0.2, -d), (w, top, d), f.timber)
    for i in range(f.parts):
        x0, x1 = i / f.parts, (i + 1) / f.parts
        body.faces[0].decal(rect(x0 + 0.012, 0.07, x1 - 0.012, 0.93), lit(f.timber, 1.15))
        if f.back == "slatted":
            for y in np.linspace(0.16, 0.78, 6):
                body.faces[0].decal(rect(x0 + 0.03, y, x1 - 0.03, y + 0.05), lit(f.timber, 0.85))
        elif f.back == "padded":
            body.faces[0].decal(rect(x0 + 0.04, 0.18, x1 - 0.04, 0.82), f.fabric)
        side = x1 - 0.03 if i % 2 == 0 else x0 + 0.03
        body.faces[0].decal(ellipse(side, 0.5, 0.011, 0.04, 10), BRASS)
    return [*stand(f, w, d, 0.2), body, *vase(f, top)]


def _lamp(f: Furniture) -> list[Solid]:
    top, wide = 1.3 * f.tall, 0.2 * f.wide
    shade = {
        "slatted": [(1.2, 0.0), (0.7, 0.3)],
        "barred": [(1.0, 0.0), (1.0, 0.3)],
        "panelled": [(1.4, 0.0), (0.15, 0.24)],
        "padded": [(0.7, 0.0), (1.2, 0.12), (1.2, 0.2), (0.7, 0.32)],
    }[f.back]
    shade = [(wide * r, top + y) for r, y in shade]
    pole = turning(0, 0, [(0.02, 0.05), (0.02, top)], f.timber, 6)
    feet = [turning(0, 0, [(0.18, 0.0), (0.16, 0.05)], f.timber, 16)]
    if f.legs in ("splayed", "straight"):
        feet = [box((-0.25, 0.0, -0.02), (0.25, 0.05, 0.02), f.timber)]
    heights = np.linspace(0.15, top - 0.2, f.parts) if f.buttons else ()
    ball = [(0.02, 0.0), (0.05, 0.05), (0.02, 0.1)]
    balls = [
        turning(0, 0, [(r, y + dy) for r, dy in ball], lit(f.timber, 0.8), 10) for y in heights
    ]
    return [*feet, *balls, pole, turning(0, 0, shade, f.fabric, 16)]


FURNITURE = {
    "chair": _chair, "stool": _stool, "armchair": armchair, "sofa": sofa, "table": _table,
    "desk": _desk, "bookcase": _bookcase, "dresser": _dresser, "bed": bed,
    "sideboard": _sideboard, "floor lamp": _lamp, "bench": _bench,
}  # fmt: skip
