"""Build parts of furniture: legs, backs, drawers and cushions, sizes in metres."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from toydomains.furniture.spec import Furniture
from toydomains.kit.colour import lit
from toydomains.kit.outline import ellipse, rect
from toydomains.kit.solid import Solid, box, turning

Corner: TypeAlias = tuple[float, float, float]

BRASS = (222, 190, 120)


def stand(f: Furniture, w: float, d: float, top: float) -> list[Solid]:
    """Return four legs (or two sleds) under a slab of half-sizes `w` and `d`."""
    timber, x, z, t = f.timber, w - 0.05, d - 0.05, 0.035
    corners = [(-x, -z), (-x, z), (x, -z), (x, z)]
    if f.legs == "turned":
        shape = [(0.022, 0.0), (0.045, top * 0.7), (0.045, top)]
        return [turning(*corner, shape, timber, 8) for corner in corners]
    if f.legs == "splayed":
        shape = [(0.02, 0.0), (0.06, top)]
        return [turning(*corner, shape, lit(timber, 0.9), 4) for corner in corners]
    foot = 0.05 if f.legs == "sled" else 0.0
    posts = [box((u - t, foot, v - t), (u + t, top, v + t), timber) for u, v in corners]
    sleds = [box((u - t, 0, -d), (u + t, foot, d), timber) for u in (-x, x)]
    return posts + sleds if foot else posts


def rest(
    f: Furniture, w: float, z: float, low: float, high: float, thick: float = 0.05
) -> list[Solid]:
    """Return a back between two heights at depth `z` (its rear face)."""
    timber, back = f.timber, z + thick
    if f.back == "padded":
        return [padded((-w, low, z), (w, high, z + 1.6 * thick), f.fabric, f.buttons)]
    if f.back == "panelled":
        return [box((-w, low, z), (w, high, back), timber)]
    posts = [box((x, low, z), (x + 0.06, high, back), timber) for x in (-w, w - 0.06)]
    inner = w - 0.06
    if f.back == "slatted":
        step = (high - low) / (f.parts + 1)
        ys = [low + step * (i + 1) for i in range(f.parts)]
        return posts + [box((-inner, y, z), (inner, y + 0.5 * step, back), timber) for y in ys]
    xs = np.linspace(-w + 0.12, w - 0.14, f.parts + 1)
    bars = [box((x, low, z), (x + 0.035, high - 0.08, back), timber) for x in xs]
    return [*posts, *bars, box((-inner, high - 0.08, z), (inner, high, back), timber)]


def vase(f: Furniture, top: float) -> list[Solid]:
    """Return a vase at height `top` if the piece has one."""
    if not f.buttons:
        return []
    return [turning(0.05, 0, [(0.05, top), (0.09, top + 0.1), (0.04, top + 0.24)], f.fabric, 12)]


def drawers(chest: Solid, f: Furniture, rows: int, columns: int) -> None:
    """Draw drawer fronts with knobs or bars on the front face."""
    front, fill = chest.faces[0], f.fabric if f.back == "padded" else lit(f.timber, 1.14)
    handle = lit(f.timber, 0.4) if f.wood in ("white", "birch", "oak") else BRASS
    for row in range(rows):
        for column in range(columns):
            x, y, u, v = column / columns, row / rows, 1 / columns, 1 / rows
            panel = rect(x + 0.07 * u, y + 0.1 * v, x + 0.93 * u, y + 0.94 * v)
            front.decal(panel, fill)
            if f.legs in ("turned", "splayed"):
                front.decal(ellipse(x + 0.5 * u, y + 0.5 * v, 0.03, 0.03, 10), handle)
            else:
                front.decal(rect(x + 0.3 * u, y + 0.24 * v, x + 0.7 * u, y + 0.32 * v), handle)


def padded(low: Corner, high: Corner, colour: str, buttons: bool) -> Solid:
    """Return an upholstered block with a seam, and buttons on its front."""
    body = box(low, high, colour)
    body.faces[0].decal(rect(0.03, 0.06, 0.97, 0.94, 0.08), lit(colour, 1.1))
    if buttons:
        for x in np.linspace(0.2, 0.8, 4):
            for y in (0.35, 0.7):
                body.faces[0].decal(ellipse(x, y, 0.022, 0.04, 10), lit(colour, 0.7))
    return body
