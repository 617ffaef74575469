"""Build toys from boxes, balls and turned parts."""

from __future__ import annotations

import numpy as np

from toydomains.kit.colour import lit
from toydomains.kit.outline import arc, ellipse, rect
from toydomains.kit.solid import Solid, ball, box, extruded, turning
from toydomains.toys.figures import bear, doll, duck, hatted, marked, rabbit, robot, wheel
from toydomains.toys.spec import Toy


def _rocket(t: Toy) -> list[Solid]:
    main, second, third = t.paints
    r, high = 0.24 * t.wide, 1.0 * t.tall
    body = turning(0, 0, [(0.7 * r, 0.16), (r, 0.5), (r, high)], main, 18)
    for face in body.faces[18:36:6]:
        face.decal(ellipse(0.5, 0.3, 1.2, 0.14), third)
    nose = turning(0, 0, [(r, high), (0.75 * r, high + 0.2), (0.01, high + 0.48)], second, 18)
    solids = [body, nose, turning(0, 0, [(0.5 * r, 0.06), (0.7 * r, 0.16)], "charcoal", 14)]
    fin = [(0.09, 0.0), (0.07, 0.3 * t.limbs), (0.01, 0.5 * t.limbs)]
    for angle in 2 * np.pi * (np.arange(t.parts) + 0.25) / t.parts:
        solids.append(turning(np.sin(angle) * (r + 0.1), np.cos(angle) * (r + 0.1), fin, third, 8))
    if t.mark != "plain":
        ring = [(1.04 * r, high - 0.1), (1.04 * r, high - 0.02)]
        solids.append(turning(0, 0, ring, third, 18))
    return solids


def _train(t: Toy) -> list[Solid]:
    _, second, third = t.paints
    solids: list[Solid] = []
    x = -0.3 * t.parts
    for i in range(t.parts - 1):
        car = box((x, 0.14, -0.18), (x + 0.4, 0.34 + 0.1 * (i % 2), 0.18), (second, third)[i % 2])
        solids += [marked(t, car, (0, 2), 2 if i % 2 == 0 else 1)]
        solids += [wheel(x + u, s * 0.215, 0.09, "charcoal") for u in (0.1, 0.3) for s in (-1, 1)]
        solids.append(box((x + 0.4, 0.18, -0.03), (x + 0.5, 0.22, 0.03), "charcoal"))
        x += 0.5
    return [*solids, *_engine(t, x)]


def _engine(t: Toy, x: float) -> list[Solid]:
    """The engine, its rear at `x`."""
    main, second, third = t.paints
    high = 0.72 * t.tall
    base = box((x, 0.14, -0.18), (x + 0.72, 0.24, 0.18), third)
    cab = box((x, 0.24, -0.18), (x + 0.26, high, 0.18), main)
    for i in (0, 2):
        cab.faces[i].decal(rect(0.2, 0.14, 0.8, 0.5), (190, 222, 232))
    roof = box((x - 0.05, high, -0.22), (x + 0.31, high + 0.05, 0.22), second)
    ring = ellipse(0.0, 0.38, 0.14, steps=15)[:-1]
    boiler = extruded(ring, x + 0.26, x + 0.72, main, axis=0)
    stack = turning(x + 0.58, 0, [(0.05, 0.52), (0.08, 0.66 * t.tall)], third, 10)
    wheels = [wheel(x + u, z, 0.1, second) for u in (0.13, 0.36, 0.6) for z in (-0.215, 0.215)]
    return [base, cab, roof, boiler, stack, *hatted(t, x + 0.58, 0.66 * t.tall, 0, 0.09), *wheels]


def _blocks(t: Toy) -> list[Solid]:
    # The class's own blocks: the same in every view.
    rng = np.random.default_rng([t.parts, int(1e4 * t.wide), int(1e4 * t.tall)])
    solids, y = [], 0.0
    for i in range(t.parts + 2):
        w, h = float(rng.uniform(0.15, 0.3)) * t.wide, float(rng.uniform(0.16, 0.28))
        x, colour = float(rng.uniform(-0.06, 0.06)), t.paints[i % 3]
        kind = int(rng.integers(0, 3))
        if kind == 0:
            solids.append(turning(x, 0, [(w * 0.8, y), (w * 0.8, y + h)], colour, 16))
        else:
            solid = box((x - w, y, -0.18), (x + w, y + h, 0.18), colour)
            if kind == 2:
                solid.faces[0].decal(arc(0.5, 1.0, 0.28, 0.7, 180, 360), lit(colour, 0.6))
            else:
                marked(t, solid, (0, 1, 3), (i + 1) % 3)
            solids.append(solid)
        y += h
    return [*solids, *hatted(t, 0, y, 0, 0.16)]


def _rings(t: Toy) -> list[Solid]:
    solids = [turning(0, 0, [(0.42, 0.0), (0.4, 0.06)], t.paints[0], 20)]
    y, h, n = 0.06, 0.15 * t.tall, t.parts + 1
    for i in range(n):
        r = (0.4 - 0.24 * i / n) * t.wide
        r *= 0.8 if t.eyes == "square" and i % 2 else 1.0
        ring = [(0.85 * r, y), (r, y + h / 2), (0.85 * r, y + h)]
        solids.append(turning(0, 0, ring, t.paints[(i + 1) % 3], 18))
        y += h
    return [*solids, ball((0, y + 0.09, 0), (0.1, 0.1, 0.1), t.paints[2])]


def _top(t: Toy) -> list[Solid]:
    r, h, bands = 0.42 * t.wide, 0.72 * t.tall, 2 * t.parts
    solids = [turning(0, 0, [(0.01, 0.0), (0.06, 0.08)], "charcoal", 10)]
    share = np.linspace(0, 1, bands + 1)
    radii = np.maximum(0.06, r * np.sin(np.pi * (0.08 + 0.84 * share)))
    rings = list(zip(radii, 0.08 + h * share, strict=True))
    for i in range(bands):
        colour = t.paints[i % 2 if i < t.parts else (i + 1) % 3]
        solids.append(turning(0, 0, rings[i : i + 2], colour, 20))
    y = 0.08 + h + 0.24 * t.limbs
    solids.append(turning(0, 0, [(0.035, 0.08 + h), (0.035, y)], "tan", 8))
    return [*solids, ball((0, y + 0.05, 0), (0.08, 0.06, 0.08), t.paints[2])]


def _boat(t: Toy) -> list[Solid]:
    main, second, third = t.paints
    w = 0.62 * t.wide
    hull = extruded(np.array([(-0.7 * w, 0), (0.7 * w, 0), (w, 0.26), (-w, 0.26)]), -0.2, 0.2, main)
    deck = box((-0.6 * w, 0.26, -0.14), (0.1 * w, 0.42, 0.14), third)
    solids = [hull, marked(t, deck, (0, 2), 1)]
    for i in range(min(t.parts, 3)):
        x = -0.3 * w + 0.45 * w * i
        low = 0.42 if x < 0.1 * w else 0.26
        solids.append(turning(x, 0, [(0.018, low), (0.018, 1.05 * t.tall)], "brown", 6))
        side = -1 if t.eyes == "square" else 1
        sail = np.array([(x + 0.02, 0.48), (x + 0.02 + 0.34 * w, 0.48), (x + 0.02, 1.0 * t.tall)])
        if side < 0:
            sail = (sail * (-1, 1) + (2 * x, 0))[::-1]
        solids.append(extruded(sail, -0.01, 0.01, "white" if i % 2 else second))
    return solids


def _drum(t: Toy) -> list[Solid]:
    main, second, third = t.paints
    r, h, sides = 0.42 * t.wide, 0.5 * t.tall, 2 * (t.parts + 5)
    body = turning(0, 0, [(r, 0.06), (r, h)], main, sides)
    tooth = np.array([(0, 1), (0.5, 0), (1, 1), (0.8, 1), (0.5, 0.36), (0.2, 1)])
    for i, face in enumerate(body.faces[:sides]):
        if t.mark not in ("striped", "plain"):
            face.decal(tooth, second)
        elif i % 2:
            face.colour = second
    rims = [turning(0, 0, [(1.06 * r, y), (1.06 * r, y + 0.07)], third, 24) for y in (0.0, h)]
    skin = turning(0, 0, [(0.96 * r, h + 0.07), (0.96 * r, h + 0.075)], "cream", 24)
    solids = [body, *rims, skin]
    for z in (-0.1, 0.12) if t.sticks else ():
        solids.append(box((-0.26, h + 0.08, z), (0.36, h + 0.11, z + 0.03), "tan"))
        solids.append(ball((0.36, h + 0.1, z + 0.015), (0.05, 0.05, 0.05), third, 5, 10))
    return solids


TOYS = {
    "robot": robot, "bear": bear, "rabbit": rabbit, "duck": duck, "rocket": _rocket,
    "train": _train, "block tower": _blocks, "ring stacker": _rings, "spinning top": _top,
    "boat": _boat, "drum": _drum, "wooden doll": doll,
}  # fmt: skip
