"""Toys on the floor: robots, bears, trains, rockets, blocks, of painted wood and plastic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toydomains.kit.colour import lit
from toydomains.kit.pen import arc, ellipse, rect, star
from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import room
from toydomains.kit.solid import Camera, Solid, ball, box, extruded, turning
from toydomains.kit.subject import Subject, a, count, one_of, real, whole

KINDS = (
    "robot", "bear", "rabbit", "duck", "rocket", "train", "block tower", "ring stacker",
    "spinning top", "boat", "drum", "wooden doll",
)  # fmt: skip
PAINTS = (
    ("red", "yellow", "blue"), ("teal", "orange", "cream"), ("yellow", "navy", "red"),
    ("light blue", "pink", "white"), ("green", "red", "cream"), ("blue", "white", "orange"),
    ("pink", "mint", "purple"), ("orange", "teal", "white"), ("lavender", "yellow", "rose"),
)  # fmt: skip
PLAIN_NAMES = ("block tower", "ring stacker", "wooden doll", "spinning top")
MARKS = ("star", "round", "square", "striped", "plain")
HATS = ("no hat", "a cone hat", "a flat hat", "a bobble", "a bow")


@dataclass(frozen=True)
class Toy(Subject):
    """A toy; `parts` counts wagons, rings, blocks, fins or buttons, depending on the kind."""

    kin = ("kind", "paints")
    title = "{0.paints[0]}-{0.kind}"

    kind: str = one_of(KINDS)
    paints: tuple[str, str, str] = one_of(PAINTS)
    mark: str = one_of(MARKS)
    hat: str = one_of(HATS)
    parts: int = whole(2, 6)
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
        """Whether a duck stands on wheels."""
        return self.parts > 3

    @property
    def sticks(self) -> bool:
        """Whether sticks lie on a drum."""
        return self.hat != "no hat"

    def view(self, rng: np.random.Generator, role: str) -> View:
        """Place it on the floor, seen from above."""
        size = frame(rng)
        scene = room(rng, size, (0.3, 0.55), FLOORS)
        camera = Camera(float(rng.uniform(-42, 42)), float(rng.uniform(8, 34)), 4.5)
        solids = TOYS[self.kind](self)
        pose = Pose(scale=(0.78, 1.0), turn_deg=5, tilt=0.0, shift=0.08, ground=(0.82, 0.98))
        return portrait(rng, scene, solids, camera, pose, obstacles=0.25)


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
