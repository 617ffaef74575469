"""Upholstered furniture: cushions, armchairs, sofas, beds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from toydomains.furniture.joinery import padded, rest, stand
from toydomains.furniture.spec import Furniture
from toydomains.kit.colour import lit
from toydomains.kit.outline import rect
from toydomains.kit.solid import Solid, box


def armchair(f: Furniture) -> list[Solid]:
    """One seat between two arms."""
    return _seating(f, 0.36 * f.wide, 1)


def sofa(f: Furniture) -> list[Solid]:
    """Several seats between two arms."""
    return _seating(f, 0.85 * f.wide, f.cushions)


def _seating(f: Furniture, w: float, cushions: int) -> list[Solid]:
    """An upholstered seat of half-width `w` between two arms."""
    d, foot, seat, top = 0.36, 0.14, 0.4, 0.86 * f.tall
    arm, high = 0.14, 0.6 if f.square else 0.47
    dark, step = lit(f.fabric, 0.86), 2 * w / cushions
    solids = [*stand(f, w + arm, d, foot), box((-w, foot, -d), (w, seat - 0.08, d), dark)]
    for i in range(cushions):
        x0, x1 = -w + i * step + 0.008, -w + (i + 1) * step - 0.008
        solids.append(box((x0, seat - 0.08, -d + 0.2), (x1, seat + 0.08, d), lit(f.fabric, 1.08)))
        solids.append(padded((x0, seat - 0.08, -d), (x1, top, -d + 0.2), f.fabric, f.buttons))
    for x0, x1 in ((-w - arm, -w), (w, w + arm)):
        solids.append(box((x0, foot, -d), (x1, high, d), f.fabric))
        if f.square:
            solids.append(box((x0, high, -d + 0.06), (x1, high + 0.05, d), f.timber))
    return solids


def bed(f: Furniture) -> list[Solid]:
    """A single or double bed, its head at the back, the blanket plain or striped."""
    w, d = 0.55 * f.wide, 0.85
    base = box((-w, 0.16, -d), (w, 0.32, d), f.timber)
    mattress = box((-w + 0.03, 0.32, -d + 0.08), (w - 0.03, 0.48, d - 0.02), "white")
    blanket = box((-w + 0.01, 0.48, -0.25), (w - 0.01, 0.54, d), f.fabric)
    for i in range(f.parts if f.buttons else 0):
        y = (i + 0.3) / f.parts
        blanket.faces[4].decal(rect(0, y, 1, y + 0.4 / f.parts), lit(f.fabric, 1.35))
    edges = np.linspace(-w + 0.08, w - 0.08, 2 + (f.columns > 1))
    pillows = [
        box((x0 + 0.02, 0.48, -d + 0.12), (x1 - 0.02, 0.6, -d + 0.45), "cream")
        for x0, x1 in pairwise(edges)
    ]
    head = rest(f, w, -d - 0.06, 0.16, f.tall)
    return [*stand(f, w, d, 0.16), base, mattress, blanket, *pillows, *head]
