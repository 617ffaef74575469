"""Toy figures: robots, plush animals, ducks, dolls, and the hats, faces and marks of all toys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toydomains.kit.outline import ellipse, rect, star
from toydomains.kit.solid import Solid, ball, box, extruded, turning
from toydomains.toys.spec import Toy


def marked(t: Toy, solid: Solid, faces: Sequence[int] = (0,), colour: int = 2) -> Solid:
    """Return the solid with the toy's mark on some of its faces."""
    ink = t.paints[colour]
    for i in faces:
        face = solid.faces[i]
        if t.mark == "star":
            face.decal(star(0.5, 0.52, 0.34), ink)
        elif t.mark == "round":
            face.decal(ellipse(0.5, 0.5, 0.28), ink)
            face.decal(ellipse(0.5, 0.5, 0.16), "white")
        elif t.mark == "square":
            face.decal(rect(0.25, 0.25, 0.75, 0.75), ink)
        elif t.mark == "striped":
            for y in (0.15, 0.45, 0.75):
                face.decal(rect(0.1, y, 0.9, y + 0.14), ink)
    return solid


def hatted(t: Toy, x: float, y: float, z: float, r: float) -> list[Solid]:
    """Return the hat for a head of radius `r` whose crown is at (x, y, z)."""
    third = t.paints[2]
    if t.hat == "a cone hat":
        return [turning(x, z, [(0.6 * r, y - 0.06 * r), (0.01, y + 1.1 * r)], third, 12)]
    if t.hat == "a flat hat":
        return [
            turning(x, z, [(r, y - 0.1 * r), (r, y)], third),
            turning(x, z, [(0.6 * r, y), (0.6 * r, y + 0.5 * r)], third),
        ]
    if t.hat == "a bobble":
        return [ball((x, y + 0.25 * r, z), (0.32 * r,) * 3, third)]
    if t.hat == "a bow":
        return [
            ball((x + s * 0.38 * r, y + 0.12 * r, z), (0.36 * r, 0.26 * r, 0.16 * r), third)
            for s in (-1, 1)
        ]
    return []


def eyes(x: float, y: float, z: float, r: float) -> list[Solid]:
    """Return eyes in front of a head at (x, y, z)."""
    dark = (36, 34, 42)
    return [
        ball((x + s * 0.38 * r, y + 0.18 * r, z), (0.11 * r, 0.14 * r, 0.06 * r), dark, 5, 8)
        for s in (-1, 1)
    ]


def wheel(x: float, z: float, r: float, colour: str) -> Solid:
    """Return a wheel on the ground at (x, z), its axle along z."""
    return extruded(ellipse(x, r, r, steps=17)[:-1], z - 0.03, z + 0.03, colour)


def robot(t: Toy) -> list[Solid]:
    """Boxes for the body and the head, rods for the limbs."""
    main, second, third = t.paints
    w, leg, body, head = 0.3 * t.wide, 0.26 * t.limbs, 0.52 * t.tall, 0.3
    solids = []
    for s in (-1, 1):
        solids.append(box((s * 0.17 - 0.09, 0, -0.12), (s * 0.17 + 0.09, 0.07, 0.2), third))
        solids.append(turning(s * 0.17, 0, [(0.06, 0.07), (0.06, leg)], "grey", 8))
        x = s * (w + 0.08)
        arm = [(0.055, leg + body - 0.1 - 0.36 * t.limbs), (0.055, leg + body - 0.08)]
        solids.append(turning(x, 0, arm, "grey", 8))
        solids.append(ball((x, arm[0][1] - 0.05, 0), (0.085,) * 3, third))
    torso = box((-w, leg, -0.18), (w, leg + body, 0.18), main)
    torso.faces[0].decal(rect(0.16, 0.16, 0.84, 0.84, 0.08), second)
    marked(t, torso)
    y = leg + body + 0.06
    skull = box((-0.22, y, -0.17), (0.22, y + head, 0.17), second)
    for u in (0.3, 0.7):
        square = rect(u - 0.12, 0.26, u + 0.12, 0.54)
        skull.faces[0].decal(ellipse(u, 0.4, 0.12, 0.16) if t.eyes == "round" else square, "white")
        skull.faces[0].decal(ellipse(u, 0.42, 0.05, 0.07, 10), "black")
    for u in np.linspace(0.28, 0.62, 4):
        skull.faces[0].decal(rect(u, 0.7, u + 0.06, 0.84), main)
    neck = turning(0, 0, [(0.08, leg + body), (0.08, y)], "grey", 8)
    return [*solids, torso, neck, skull, *hatted(t, 0, y + head, 0, 0.2)]


def _plush(t: Toy, ears: tuple[float, float, float], ear_x: float) -> list[Solid]:
    """A sitting plush animal; `ears` are radii."""
    main, second, _ = t.paints
    fur = main
    w, h = 0.34 * t.wide, 0.38 * t.tall
    y = 0.06 + h
    torso = ball((0, y, 0), (w, h, 0.3), fur, 9, 18)
    belly = ball((0, y - 0.04, 0.2), (0.62 * w, 0.66 * h, 0.15), second, 7, 14)
    solids = [torso, belly]
    for s in (-1, 1):
        solids.append(ball((s * 0.24, 0.12, 0.3), (0.13, 0.12, 0.22 * t.limbs), fur))
        solids.append(ball((s * 0.24, 0.12, 0.3 + 0.21 * t.limbs), (0.09, 0.09, 0.03), second))
        solids.append(ball((s * (w + 0.03), y + 0.08, 0.14), (0.1, 0.22 * t.limbs, 0.12), fur))
    top = y + h + 0.16
    solids.append(ball((0, top, 0.04), (0.29, 0.26, 0.26), fur, 9, 18))
    inner, ear_y = (0.6 * ears[0], 0.66 * ears[1], 0.05), top + 0.14 + ears[1]
    for x in (-ear_x, ear_x):
        solids += [ball((x, ear_y, 0.0), ears, fur), ball((x, ear_y, 0.05), inner, second)]
    solids.append(ball((0, top - 0.07, 0.28), (0.13, 0.1, 0.08), second))
    solids.append(ball((0, top - 0.03, 0.36), (0.05, 0.035, 0.03), "charcoal", 5, 8))
    if t.mark != "plain":
        tag = box((-0.09, y - 0.1, 0.36), (0.09, y + 0.08, 0.37), t.paints[2])
        solids.append(marked(t, tag, colour=1))
    return [*solids, *eyes(0, top, 0.29, 0.29), *hatted(t, 0, top + 0.24, 0.04, 0.2)]


def bear(t: Toy) -> list[Solid]:
    """A plush animal with small round ears."""
    return _plush(t, (0.11, 0.1, 0.06), 0.2)


def rabbit(t: Toy) -> list[Solid]:
    """A plush animal with long ears."""
    return _plush(t, (0.08, 0.24 * t.limbs, 0.05), 0.13)


def duck(t: Toy) -> list[Solid]:
    """Return a duck that faces right, with wheels if `rolls`."""
    main, second, third = t.paints
    w, low = 0.42 * t.wide, 0.2 if t.rolls else 0.0
    y, top = 0.28 + low, 0.3 + low + 0.45 * t.tall
    solids = [
        ball((0, y, 0), (w, 0.28, 0.3), main, 9, 18),
        ball((-w * 0.95, y + 0.14, 0), (0.14, 0.12, 0.12), main),
    ]
    solids += [
        ball((-0.05, y + 0.04, s * 0.33), (0.2 * t.limbs, 0.14, 0.03), third) for s in (-1, 1)
    ]
    solids.append(turning(0.24, 0, [(0.13, y), (0.11, top)], second if t.collar else main, 14))
    solids.append(ball((0.24, top, 0), (0.2, 0.19, 0.19), main, 9, 16))
    solids.append(ball((0.45, top - 0.03, 0), (0.12, 0.045, 0.1), second))
    solids += [
        ball((0.36, top + 0.06, s * 0.14), (0.035, 0.045, 0.035), "black", 5, 8) for s in (-1, 1)
    ]
    if low:
        base = box((-w, 0.06, -0.22), (w, 0.18, 0.22), second)
        solids += [
            marked(t, base, (0, 2)),
            *(wheel(x, s * 0.255, 0.1, third) for x in (-0.28, 0.28) for s in (-1, 1)),
        ]
    return [*solids, *hatted(t, 0.24, top + 0.18, 0, 0.17)]


def doll(t: Toy) -> list[Solid]:
    """A turned wooden doll without limbs."""
    main, second, third = t.paints
    r, h = 0.32 * t.wide, 0.62 * t.tall
    shape = [(0.8 * r, 0.0), (1.05 * r, 0.3 * h), (0.9 * r, 0.75 * h), (0.6 * r, h)]
    lower = turning(0, 0, shape, main, 20)
    belt = turning(0, 0, [(1.06 * r, 0.3 * h), (1.04 * r, 0.38 * h)], second, 20)
    top = h + 0.2
    head = ball((0, top, 0), (0.24, 0.25, 0.24), (244, 206, 172), 9, 18)
    hair = ball((0, top + 0.05, -0.03), (0.26, 0.25, 0.25), third, 9, 18)
    smile = ball((0, top - 0.09, 0.225), (0.06, 0.02, 0.02), "rose", 5, 8)
    solids = [lower, belt, hair, head, *eyes(0, top - 0.03, 0.22, 0.24), smile]
    for share in np.arange(t.parts) / t.parts:
        spot = (0, 0.45 * h * (1 + share), r * (1 - 0.33 * share))
        solids.append(ball(spot, (0.04, 0.04, 0.04), second, 5, 8))
    return [*solids, *hatted(t, 0, top + 0.26, 0, 0.2)]
