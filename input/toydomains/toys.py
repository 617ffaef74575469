"""Toys on the floor: robots, bears, trains, rockets, blocks, of painted wood and plastic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from toydomains.kit.colour import lit
from toydomains.kit.outline import Points, arc, ellipse, rect, star
from toydomains.kit.pen import Colour
from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import room
from toydomains.kit.solid import Camera, Solid, Solids, ball, box, extruded, turning
from toydomains.kit.subject import Subject, a, count, one_of, real

PAINTS = (
    ("red", "yellow", "blue"), ("teal", "orange", "cream"), ("yellow", "navy", "red"),
    ("light blue", "pink", "white"), ("green", "red", "cream"), ("blue", "white", "orange"),
    ("pink", "mint", "purple"), ("orange", "teal", "white"), ("lavender", "yellow", "rose"),
)  # fmt: skip
PLAIN_NAMES = ("block tower", "ring stacker", "wooden doll", "spinning top")
MARKS = ("star", "round", "square", "striped", "plain")
HATS = ("no hat", "a cone hat", "a flat hat", "a bobble", "a bow")


FLOORS = (
    ("carpet", "on a red rug"),
    ("pale wood", "on a pale wooden floor"),
    ("oak", "on a wooden floor"),
    ("yellow paper", "on a yellow mat"),
    ("blue paper", "on a blue mat"),
    ("pink paper", "on a pink mat"),
    ("checked cloth", "on a checked rug"),
    ("blue cloth", "on a blue rug"),
)
SIDES = (-1, 1)


def marked(t: Toy, solid: Solid, faces: Sequence[int] = (0,), colour: int = 2) -> Solid:
    """Return the solid with the toy's mark on some of its faces."""
    ink = t.paints[colour]
    marks: dict[str, list[tuple[Points, Colour]]] = {
        "star": [(star(0.5, 0.52, 0.34), ink)],
        "round": [(ellipse(0.5, 0.5, 0.28), ink), (ellipse(0.5, 0.5, 0.16), "white")],
        "square": [(rect(0.25, 0.25, 0.75, 0.75), ink)],
        "striped": [(rect(0.1, y, 0.9, y + 0.14), ink) for y in (0.15, 0.45, 0.75)],
    }
    for i in faces:
        solid.faces[i].decals += marks.get(t.mark, ())
    return solid


def hatted(t: Toy, x: float, y: float, z: float, r: float) -> Solids:
    """Yield the hat for a head of radius `r` whose crown is at (x, y, z)."""
    third = t.paints[2]
    if t.hat == "a cone hat":
        yield turning(x, z, [(0.6 * r, y - 0.06 * r), (0.01, y + 1.1 * r)], third, 12)
    elif t.hat == "a flat hat":
        yield turning(x, z, [(r, y - 0.1 * r), (r, y)], third)
        yield turning(x, z, [(0.6 * r, y), (0.6 * r, y + 0.5 * r)], third)
    elif t.hat == "a bobble":
        yield ball((x, y + 0.25 * r, z), (0.32 * r,) * 3, third)
    elif t.hat == "a bow":
        for s in SIDES:
            yield ball((x + s * 0.38 * r, y + 0.12 * r, z), (0.36 * r, 0.26 * r, 0.16 * r), third)


def eyes(y: float, z: float, r: float) -> Solids:
    """Yield eyes in front of a head of radius `r` at height `y` and depth `z`."""
    for s in SIDES:
        spot, radii = (s * 0.38 * r, y + 0.18 * r, z), (0.11 * r, 0.14 * r, 0.06 * r)
        yield ball(spot, radii, (36, 34, 42), 5, 8)


def wheels(xs: Sequence[float], z: float, r: float, colour: str) -> Solids:
    """Yield wheels on the ground at each x, on both sides, their axles along z."""
    for x, s in product(xs, SIDES):
        rim = ellipse(x, r, r, steps=17)[:-1]
        yield extruded(rim, s * z - 0.03, s * z + 0.03, colour)


def _robot(t: Toy) -> Solids:
    main, second, third = t.paints
    w, leg, body, head = 0.3 * t.wide, 0.26 * t.limbs, 0.52 * t.tall, 0.3
    for s in SIDES:
        yield box((s * 0.17 - 0.09, 0, -0.12), (s * 0.17 + 0.09, 0.07, 0.2), third)
        yield turning(s * 0.17, 0, [(0.06, 0.07), (0.06, leg)], "grey", 8)
        x, hand = s * (w + 0.08), leg + body - 0.1 - 0.36 * t.limbs
        yield turning(x, 0, [(0.055, hand), (0.055, leg + body - 0.08)], "grey", 8)
        yield ball((x, hand - 0.05, 0), (0.085,) * 3, third)
    torso = box((-w, leg, -0.18), (w, leg + body, 0.18), main)
    torso.faces[0].decal(rect(0.16, 0.16, 0.84, 0.84, 0.08), second)
    yield marked(t, torso)
    y = leg + body + 0.06
    yield turning(0, 0, [(0.08, leg + body), (0.08, y)], "grey", 8)
    skull = box((-0.22, y, -0.17), (0.22, y + head, 0.17), second)
    for u in (0.3, 0.7):
        square = rect(u - 0.12, 0.26, u + 0.12, 0.54)
        skull.faces[0].decal(ellipse(u, 0.4, 0.12, 0.16) if t.eyes == "round" else square, "white")
        skull.faces[0].decal(ellipse(u, 0.42, 0.05, 0.07, 10), "black")
    for u in np.linspace(0.28, 0.62, 4):
        skull.faces[0].decal(rect(u, 0.7, u + 0.06, 0.84), main)
    yield skull
    yield from hatted(t, 0, y + head, 0, 0.2)


def _plush(t: Toy) -> Solids:
    """A sitting bear with small round ears, or a rabbit with long ones."""
    fur, second, third = t.paints
    w, h = 0.34 * t.wide, 0.38 * t.tall
    y, top = 0.06 + h, 0.06 + h + h + 0.16
    yield ball((0, y, 0), (w, h, 0.3), fur, 9, 18)
    yield ball((0, y - 0.04, 0.2), (0.62 * w, 0.66 * h, 0.15), second, 7, 14)
    for s in SIDES:
        yield ball((s * 0.24, 0.12, 0.3), (0.13, 0.12, 0.22 * t.limbs), fur)
        yield ball((s * 0.24, 0.12, 0.3 + 0.21 * t.limbs), (0.09, 0.09, 0.03), second)
        yield ball((s * (w + 0.03), y + 0.08, 0.14), (0.1, 0.22 * t.limbs, 0.12), fur)
    yield ball((0, top, 0.04), (0.29, 0.26, 0.26), fur, 9, 18)
    ear_x, ears = (
        (0.2, (0.11, 0.1, 0.06)) if t.kind == "bear" else (0.13, (0.08, 0.24 * t.limbs, 0.05))
    )
    inner, ear_y = (0.6 * ears[0], 0.66 * ears[1], 0.05), top + 0.14 + ears[1]
    for s in SIDES:
        yield ball((s * ear_x, ear_y, 0.0), ears, fur)
        yield ball((s * ear_x, ear_y, 0.05), inner, second)
    yield ball((0, top - 0.07, 0.28), (0.13, 0.1, 0.08), second)
    yield ball((0, top - 0.03, 0.36), (0.05, 0.035, 0.03), "charcoal", 5, 8)
    if t.mark != "plain":
        yield marked(t, box((-0.09, y - 0.1, 0.36), (0.09, y + 0.08, 0.37), third), colour=1)
    yield from eyes(top, 0.29, 0.29)
    yield from hatted(t, 0, top + 0.24, 0.04, 0.2)


def _duck(t: Toy) -> Solids:
    """A duck that faces right, with wheels if `rolls`."""
    main, second, third = t.paints
    w, low = 0.42 * t.wide, 0.2 if t.rolls else 0.0
    y, top = 0.28 + low, 0.3 + low + 0.45 * t.tall
    yield ball((0, y, 0), (w, 0.28, 0.3), main, 9, 18)
    yield ball((-w * 0.95, y + 0.14, 0), (0.14, 0.12, 0.12), main)
    for s in SIDES:
        yield ball((-0.05, y + 0.04, s * 0.33), (0.2 * t.limbs, 0.14, 0.03), third)
    yield turning(0.24, 0, [(0.13, y), (0.11, top)], second if t.collar else main, 14)
    yield ball((0.24, top, 0), (0.2, 0.19, 0.19), main, 9, 16)
    yield ball((0.45, top - 0.03, 0), (0.12, 0.045, 0.1), second)
    for s in SIDES:
        yield ball((0.36, top + 0.06, s * 0.14), (0.035, 0.045, 0.035), "black", 5, 8)
    if t.rolls:
        yield marked(t, box((-w, 0.06, -0.22), (w, 0.18, 0.22), second), (0, 2))
        yield from wheels((-0.28, 0.28), 0.255, 0.1, third)
    yield from hatted(t, 0.24, top + 0.18, 0, 0.17)


def _doll(t: Toy) -> Solids:
    """A turned wooden doll without limbs."""
    main, second, third = t.paints
    r, h = 0.32 * t.wide, 0.62 * t.tall
    shape = [(0.8 * r, 0.0), (1.05 * r, 0.3 * h), (0.9 * r, 0.75 * h), (0.6 * r, h)]
    yield turning(0, 0, shape, main, 20)
    yield turning(0, 0, [(1.06 * r, 0.3 * h), (1.04 * r, 0.38 * h)], second, 20)
    top = h + 0.2
    yield ball((0, top + 0.05, -0.03), (0.26, 0.25, 0.25), third, 9, 18)  # hair
    yield ball((0, top, 0), (0.24, 0.25, 0.24), (244, 206, 172), 9, 18)
    yield from eyes(top - 0.03, 0.22, 0.24)
    yield ball((0, top - 0.09, 0.225), (0.06, 0.02, 0.02), "rose", 5, 8)
    for share in np.arange(t.parts) / t.parts:
        spot = (0, 0.45 * h * (1 + share), r * (1 - 0.33 * share))
        yield ball(spot, (0.04, 0.04, 0.04), second, 5, 8)
    yield from hatted(t, 0, top + 0.26, 0, 0.2)


def _rocket(t: Toy) -> Solids:
    main, second, third = t.paints
    r, high = 0.24 * t.wide, 1.0 * t.tall
    body = turning(0, 0, [(0.7 * r, 0.16), (r, 0.5), (r, high)], main, 18)
    for face in body.faces[18:36:6]:
        face.decal(ellipse(0.5, 0.3, 1.2, 0.14), third)
    yield body
    yield turning(0, 0, [(r, high), (0.75 * r, high + 0.2), (0.01, high + 0.48)], second, 18)
    yield turning(0, 0, [(0.5 * r, 0.06), (0.7 * r, 0.16)], "charcoal", 14)
    fin = [(0.09, 0.0), (0.07, 0.3 * t.limbs), (0.01, 0.5 * t.limbs)]
    for angle in 2 * np.pi * (np.arange(t.parts) + 0.25) / t.parts:
        yield turning(np.sin(angle) * (r + 0.1), np.cos(angle) * (r + 0.1), fin, third, 8)
    if t.mark != "plain":
        yield turning(0, 0, [(1.04 * r, high - 0.1), (1.04 * r, high - 0.02)], third, 18)


def _train(t: Toy) -> Solids:
    main, second, third = t.paints
    x, high = -0.3 * t.parts, 0.72 * t.tall
    for i in range(t.parts - 1):
        car = box((x, 0.14, -0.18), (x + 0.4, 0.34 + 0.1 * (i % 2), 0.18), (second, third)[i % 2])
        yield marked(t, car, (0, 2), 2 if i % 2 == 0 else 1)
        yield from wheels((x + 0.1, x + 0.3), 0.215, 0.09, "charcoal")
        yield box((x + 0.4, 0.18, -0.03), (x + 0.5, 0.22, 0.03), "charcoal")
        x += 0.5
    # The engine, its rear at x
    yield box((x, 0.14, -0.18), (x + 0.72, 0.24, 0.18), third)
    cab = box((x, 0.24, -0.18), (x + 0.26, high, 0.18), main)
    for i in (0, 2):
        cab.faces[i].decal(rect(0.2, 0.14, 0.8, 0.5), (190, 222, 232))
    yield cab
    yield box((x - 0.05, high, -0.22), (x + 0.31, high + 0.05, 0.22), second)
    yield extruded(ellipse(0.0, 0.38, 0.14, steps=15)[:-1], x + 0.26, x + 0.72, main, axis=0)
    yield turning(x + 0.58, 0, [(0.05, 0.52), (0.08, 0.66 * t.tall)], third, 10)
    yield from hatted(t, x + 0.58, 0.66 * t.tall, 0, 0.09)
    yield from wheels((x + 0.13, x + 0.36, x + 0.6), 0.215, 0.1, second)


def _blocks(t: Toy) -> Solids:
    # The class's own blocks: the same in every view.
    rng = np.random.default_rng([t.parts, int(1e4 * t.wide), int(1e4 * t.tall)])
    y = 0.0
    for i in range(t.parts + 2):
        w, h = rng.uniform(0.15, 0.3) * t.wide, rng.uniform(0.16, 0.28)
        x, colour, kind = rng.uniform(-0.06, 0.06), t.paints[i % 3], rng.integers(0, 3)
        solid = box((x - w, y, -0.18), (x + w, y + h, 0.18), colour)
        if kind == 0:
            solid = turning(x, 0, [(w * 0.8, y), (w * 0.8, y + h)], colour, 16)
        elif kind == 2:
            solid.faces[0].decal(arc(0.5, 1.0, 0.28, 0.7, 180, 360), lit(colour, 0.6))
        else:
            marked(t, solid, (0, 1, 3), (i + 1) % 3)
        yield solid
        y += h
    yield from hatted(t, 0, y, 0, 0.16)


def _rings(t: Toy) -> Solids:
    yield turning(0, 0, [(0.42, 0.0), (0.4, 0.06)], t.paints[0], 20)
    y, h, n = 0.06, 0.15 * t.tall, t.parts + 1
    for i in range(n):
        r = (0.4 - 0.24 * i / n) * t.wide
        r *= 0.8 if t.eyes == "square" and i % 2 else 1.0
        ring = [(0.85 * r, y), (r, y + h / 2), (0.85 * r, y + h)]
        yield turning(0, 0, ring, t.paints[(i + 1) % 3], 18)
        y += h
    yield ball((0, y + 0.09, 0), (0.1, 0.1, 0.1), t.paints[2])


def _top(t: Toy) -> Solids:
    r, h, bands = 0.42 * t.wide, 0.72 * t.tall, 2 * t.parts
    yield turning(0, 0, [(0.01, 0.0), (0.06, 0.08)], "charcoal", 10)
    share = np.linspace(0, 1, bands + 1)
    radii = np.maximum(0.06, r * np.sin(np.pi * (0.08 + 0.84 * share)))
    rings = list(zip(radii, 0.08 + h * share, strict=True))
    for i in range(bands):
        colour = t.paints[i % 2 if i < t.parts else (i + 1) % 3]
        yield turning(0, 0, rings[i : i + 2], colour, 20)
    y = 0.08 + h + 0.24 * t.limbs
    yield turning(0, 0, [(0.035, 0.08 + h), (0.035, y)], "tan", 8)
    yield ball((0, y + 0.05, 0), (0.08, 0.06, 0.08), t.paints[2])


def _boat(t: Toy) -> Solids:
    main, second, third = t.paints
    w = 0.62 * t.wide
    hull = np.array([(-0.7 * w, 0), (0.7 * w, 0), (w, 0.26), (-w, 0.26)])
    yield extruded(hull, -0.2, 0.2, main)
    yield marked(t, box((-0.6 * w, 0.26, -0.14), (0.1 * w, 0.42, 0.14), third), (0, 2), 1)
    for i in range(min(t.parts, 3)):
        x = -0.3 * w + 0.45 * w * i
        mast = [(0.018, 0.42 if x < 0.1 * w else 0.26), (0.018, 1.05 * t.tall)]
        yield turning(x, 0, mast, "brown", 6)
        sail = np.array([(x + 0.02, 0.48), (x + 0.02 + 0.34 * w, 0.48), (x + 0.02, 1.0 * t.tall)])
        if t.eyes == "square":  # to the left of the mast
            sail = (sail * (-1, 1) + (2 * x, 0))[::-1]
        yield extruded(sail, -0.01, 0.01, "white" if i % 2 else second)


def _drum(t: Toy) -> Solids:
    main, second, third = t.paints
    r, h, sides = 0.42 * t.wide, 0.5 * t.tall, 2 * (t.parts + 5)
    body = turning(0, 0, [(r, 0.06), (r, h)], main, sides)
    tooth = np.array([(0, 1), (0.5, 0), (1, 1), (0.8, 1), (0.5, 0.36), (0.2, 1)])
    for i, face in enumerate(body.faces[:sides]):
        if t.mark not in ("striped", "plain"):
            face.decal(tooth, second)
        elif i % 2:
            face.colour = second
    yield body
    for y in (0.0, h):
        yield turning(0, 0, [(1.06 * r, y), (1.06 * r, y + 0.07)], third, 24)
    yield turning(0, 0, [(0.96 * r, h + 0.07), (0.96 * r, h + 0.075)], "cream", 24)
    for z in (-0.1, 0.12) if t.sticks else ():
        yield box((-0.26, h + 0.08, z), (0.36, h + 0.11, z + 0.03), "tan")
        yield ball((0.36, h + 0.1, z + 0.015), (0.05, 0.05, 0.05), third, 5, 10)


TOYS = {
    "robot": _robot, "bear": _plush, "rabbit": _plush, "duck": _duck, "rocket": _rocket,
    "train": _train, "block tower": _blocks, "ring stacker": _rings, "spinning top": _top,
    "boat": _boat, "drum": _drum, "wooden doll": _doll,
}  # fmt: skip


@dataclass(frozen=True)
class Toy(Subject):
    """A toy; `parts` counts wagons, rings, blocks, fins or buttons, depending on the kind."""

    kin = ("kind", "paints")
    title = "{0.paints[0]}-{0.kind}"

    kind: str = one_of(tuple(TOYS))
    paints: tuple[str, str, str] = one_of(PAINTS)
    mark: str = one_of(MARKS)
    hat: str = one_of(HATS)
    parts: int = one_of(range(2, 6))
    eyes: str = one_of(("round", "square"))
    wide: float = real(0.82, 1.2)
    tall: float = real(0.85, 1.2)
    limbs: float = real(0.7, 1.25)

    @property
    def phrase(self) -> str:
        main, second, third = self.paints
        toy = "" if self.kind in PLAIN_NAMES else "toy "
        mark = "no mark" if self.mark == "plain" else a(f"{self.mark} mark")
        belly = f"{mark} on its belly and {self.hat}"
        collar = "a collar" if self.collar else "no collar"
        wheels = "wheels" if self.rolls else "no wheels"
        sides = "striped" if self.mark in ("striped", "plain") else "zigzag"
        details = {
            "robot": f"{self.eyes} eyes, {mark} and {self.hat}",
            "bear": belly,
            "rabbit": belly,
            "duck": f"{third} wings, {collar}, {wheels} and {self.hat}",
            "rocket": f"{count(self.parts, 'fin')}, {third} portholes and "
            + ("no band" if self.mark == "plain" else "a band"),
            "train": f"{count(self.parts - 1, 'wagon')} and {self.hat} on its chimney",
            "block tower": f"{count(self.parts + 2, 'block')} and {self.hat}",
            "ring stacker": f"{count(self.parts + 1, 'ring')} and {a(third)} ball",
            "spinning top": f"{count(2 * self.parts, 'band')} and {a(third)} handle",
            "boat": f"{count(min(self.parts, 3), 'sail')} and {mark}",
            "drum": f"{sides} sides, {third} rims and {'two' if self.sticks else 'no'} sticks",
            "wooden doll": f"{count(self.parts, 'button')} and {self.hat}",
        }
        return a(f"{main} and {second} {toy}{self.kind} with {details[self.kind]}")

    @property
    def collar(self) -> bool:
        """Whether a duck wears a collar."""
        return self.eyes == "square"

    @property
    def rolls(self) -> bool:
        """Whether a duck has wheels."""
        return self.parts > 3

    @property
    def sticks(self) -> bool:
        """Whether a drum has sticks."""
        return self.hat != "no hat"

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng)
        scene = room(rng, size, (0.3, 0.55), FLOORS)
        camera = Camera(rng.uniform(-42, 42), rng.uniform(8, 34), 4.5)
        pose = Pose(scale=(0.78, 1.0), turn_deg=5, tilt=0.0, shift=0.08, ground=(0.82, 0.98))
        return portrait(rng, scene, TOYS[self.kind](self), camera, pose, obstacles=0.25)
