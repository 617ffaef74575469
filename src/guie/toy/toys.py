"""Toys on the floor: robots, bears, trains, rockets, blocks, of painted wood and plastic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guie.toy.canvas import arc, ellipse, pick, rect, star
from guie.toy.colour import lit
from guie.toy.photo import Pose, View, blank, develop, frame, placed
from guie.toy.scene import room
from guie.toy.solid import Camera, Solid, ball, bounds, box, cast_shadow, extruded, paint, turning
from guie.toy.subject import Subject, a, count

PAINTS = (
    ("red", "yellow", "blue"), ("teal", "orange", "cream"), ("yellow", "navy", "red"),
    ("light blue", "pink", "white"), ("green", "red", "cream"), ("blue", "white", "orange"),
    ("pink", "mint", "purple"), ("orange", "teal", "white"), ("lavender", "yellow", "rose"),
)  # fmt: skip
KINDS = ("robot", "bear", "rocket", "train", "block tower", "ring stacker", "spinning top", "boat", "duck",
         "drum", "rabbit", "wooden doll")  # fmt: skip
MARKS = ("star", "round", "square", "striped", "plain")
HATS = ("no hat", "a cone hat", "a flat hat", "a bobble", "a bow")
FLOORS = (
    ("carpet", "on a red rug"), ("pale wood", "on a pale wooden floor"), ("oak", "on a wooden floor"),
    ("yellow paper", "on a yellow mat"), ("blue paper", "on a blue mat"), ("pink paper", "on a pink mat"),
    ("checked cloth", "on a checked rug"), ("blue cloth", "on a blue rug"),
)  # fmt: skip


@dataclass(frozen=True)
class Toy(Subject):
    """A toy; `parts` counts wagons, rings, blocks, fins or buttons, as the kind has them."""

    kin = ("kind", "paints")

    kind: str
    paints: tuple[str, str, str]
    mark: str
    hat: str
    parts: int
    eyes: str
    wide: float
    tall: float
    limbs: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Toy:
        return cls(
            kind=pick(rng, KINDS),
            paints=pick(rng, PAINTS),
            mark=pick(rng, MARKS),
            hat=pick(rng, HATS),
            parts=int(rng.integers(2, 6)),
            eyes=pick(rng, ("round", "square")),
            wide=float(rng.uniform(0.82, 1.2)),
            tall=float(rng.uniform(0.85, 1.2)),
            limbs=float(rng.uniform(0.7, 1.25)),
        )

    @property
    def name(self) -> str:
        return f"{self.paints[0]}-{self.kind}".replace(" ", "-")

    @property
    def phrase(self) -> str:
        main, second, third = self.paints
        head = a(
            f"{main} and {second} toy {self.kind}"
            if self.kind not in ("block tower", "ring stacker", "wooden doll", "spinning top")
            else f"{main} and {second} {self.kind}"
        )
        mark = a(f"{self.mark} mark") if self.mark != "plain" else "no mark"
        detail = {
            "robot": f"{self.eyes} eyes, {mark} and {self.hat}",
            "bear": f"{mark} on its belly and {self.hat}",
            "rabbit": f"{mark} on its belly and {self.hat}",
            "duck": f"{third} wings and {self.hat}",
            "rocket": f"{count(self.parts, 'fin')} and {mark}",
            "train": f"{count(self.parts - 1, 'wagon')} and {self.hat.replace('hat', 'chimney')}",
            "block tower": f"{count(self.parts + 2, 'block')} and {self.hat}",
            "ring stacker": f"{count(self.parts + 1, 'ring')} and {a(third)} ball",
            "spinning top": f"{count(self.parts, 'band')} and {a(third)} handle",
            "boat": f"{count(min(self.parts, 3), 'sail')} and {mark}",
            "drum": f"{count(self.parts + 3, 'stripe')} and {third} rims",
            "wooden doll": f"{count(self.parts, 'button')} and {self.hat}",
        }[self.kind]
        return f"{head} with {detail}"

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng)
        scene = room(rng, size, (0.3, 0.55), FLOORS)
        camera = Camera(float(rng.uniform(-42, 42)), float(rng.uniform(8, 34)), 4.5)
        solids = _BUILDERS[self.kind](self)
        pose = Pose(scale=(0.78, 1.0), turn_deg=5, tilt=0.0, shift=0.08, ground=(0.82, 0.98))
        matrix = placed(rng, bounds(solids, camera), size, pose)
        pen, shadow = blank(size, matrix), blank(size, matrix)
        cast_shadow(shadow, solids, camera)
        paint(pen, solids, camera)
        return develop(rng, scene, pen.image, shadow=shadow.image, obstacles=0.25)

    def marked(self, solid: Solid, faces=(0,), colour: int = 2) -> Solid:
        """The solid with the toy's mark on some of its faces."""
        ink = self.paints[colour]
        for i in faces:
            face = solid.faces[i]
            if self.mark == "star":
                face.decal(star(0.5, 0.52, 0.34), ink)
            elif self.mark == "round":
                face.decal(ellipse(0.5, 0.5, 0.28), ink)
                face.decal(ellipse(0.5, 0.5, 0.16), "white")
            elif self.mark == "square":
                face.decal(rect(0.25, 0.25, 0.75, 0.75), ink)
            elif self.mark == "striped":
                for y in (0.15, 0.45, 0.75):
                    face.decal(rect(0.1, y, 0.9, y + 0.14), ink)
        return solid

    def hatted(self, x: float, y: float, z: float, r: float) -> list[Solid]:
        """The hat, for a head of radius `r` whose crown is at (x, y, z)."""
        third = self.paints[2]
        if self.hat == "a cone hat":
            return [turning(x, z, [(0.6 * r, y - 0.06 * r), (0.01, y + 1.1 * r)], third, 12)]
        if self.hat == "a flat hat":
            return [
                turning(x, z, [(r, y - 0.1 * r), (r, y)], third),
                turning(x, z, [(0.6 * r, y), (0.6 * r, y + 0.5 * r)], third),
            ]
        if self.hat == "a bobble":
            return [ball((x, y + 0.25 * r, z), (0.32 * r,) * 3, third)]
        if self.hat == "a bow":
            return [
                ball((x + s * 0.38 * r, y + 0.12 * r, z), (0.36 * r, 0.26 * r, 0.16 * r), third)
                for s in (-1, 1)
            ]
        return []

    def face(self, x: float, y: float, z: float, r: float) -> list[Solid]:
        """Eyes in front of a head at (x, y, z)."""
        dark = (36, 34, 42)
        return [
            ball((x + s * 0.38 * r, y + 0.18 * r, z), (0.11 * r, 0.14 * r, 0.06 * r), dark, 5, 8)
            for s in (-1, 1)
        ]


def _wheel(x: float, z: float, r: float, colour: str) -> Solid:
    ring = ellipse(x, r, r, steps=17)[:-1]
    solid = extruded(ring, z - 0.03, z + 0.03, colour)
    return solid


def _robot(t: Toy) -> list[Solid]:
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
    t.marked(torso)
    y = leg + body + 0.06
    face = box((-0.22, y, -0.17), (0.22, y + head, 0.17), second)
    for u in (0.3, 0.7):
        eye = (
            ellipse(u, 0.4, 0.12, 0.16, 14)
            if t.eyes == "round"
            else rect(u - 0.12, 0.26, u + 0.12, 0.54)
        )
        face.faces[0].decals += [(eye, "white"), (ellipse(u, 0.42, 0.05, 0.07, 10), "black")]
    for u in np.linspace(0.28, 0.62, 4):
        face.faces[0].decal(rect(u, 0.7, u + 0.06, 0.84), main)
    neck = turning(0, 0, [(0.08, leg + body), (0.08, y)], "grey", 8)
    return [*solids, torso, neck, face, *t.hatted(0, y + head, 0, 0.2)]


def _plush(t: Toy, ears: tuple[float, float, float], ear_x: float) -> list[Solid]:
    """A sitting plush animal; `ears` are radii."""
    main, second, _ = t.paints
    fur = {"robot": main}.get(t.kind, main)
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
    for s in (-1, 1):
        solids.append(ball((s * ear_x, top + 0.14 + ears[1], 0.0), ears, fur))
        solids.append(
            ball(
                (s * ear_x, top + 0.14 + ears[1], 0.05),
                (0.6 * ears[0], 0.66 * ears[1], 0.05),
                second,
            )
        )
    solids.append(ball((0, top - 0.07, 0.28), (0.13, 0.1, 0.08), second))
    solids.append(ball((0, top - 0.03, 0.36), (0.05, 0.035, 0.03), "charcoal", 5, 8))
    if t.mark in ("star", "square"):
        tag = box((-0.09, y - 0.1, 0.36), (0.09, y + 0.08, 0.37), t.paints[2])
        solids.append(t.marked(tag, colour=1))
    return [*solids, *t.face(0, top, 0.29, 0.29), *t.hatted(0, top + 0.24, 0.04, 0.2)]


def _bear(t: Toy) -> list[Solid]:
    return _plush(t, (0.11, 0.1, 0.06), 0.2)


def _rabbit(t: Toy) -> list[Solid]:
    return _plush(t, (0.08, 0.24 * t.limbs, 0.05), 0.13)


def _duck(t: Toy) -> list[Solid]:
    main, second, third = t.paints
    w = 0.42 * t.wide
    y, top = 0.3, 0.36 + 0.42 * t.tall
    solids = [
        ball((0, y, 0), (w, 0.28, 0.3), main, 9, 18),
        ball((-w * 0.95, y + 0.14, 0), (0.14, 0.12, 0.12), main),
    ]
    solids += [ball((-0.05, y + 0.06, s * 0.27), (0.22, 0.14, 0.07), third) for s in (-1, 1)]
    solids.append(ball((0.24, top, 0), (0.2, 0.19, 0.19), main, 9, 16))
    solids.append(ball((0.45, top - 0.03, 0), (0.12, 0.045, 0.1), second))
    solids += [
        ball((0.36, top + 0.06, s * 0.14), (0.035, 0.045, 0.035), "black", 5, 8) for s in (-1, 1)
    ]
    return [*solids, *t.hatted(0.24, top + 0.18, 0, 0.17)]


def _rocket(t: Toy) -> list[Solid]:
    main, second, third = t.paints
    r, high = 0.24 * t.wide, 1.0 * t.tall
    body = turning(0, 0, [(0.7 * r, 0.16), (r, 0.5), (r, high)], main, 18)
    nose = turning(0, 0, [(r, high), (0.75 * r, high + 0.2), (0.01, high + 0.48)], second, 18)
    for i in range(18, 36, 6):
        body.faces[i].decal(ellipse(0.5, 0.3, 1.2, 0.14), third)
        t.marked(body, (i + 3,)) if t.mark == "striped" else None
    solids = [body, nose, turning(0, 0, [(0.5 * r, 0.06), (0.7 * r, 0.16)], "charcoal", 14)]
    for i in range(t.parts):
        angle = 2 * np.pi * (i + 0.25) / t.parts
        x, z = np.sin(angle) * (r + 0.1), np.cos(angle) * (r + 0.1)
        solids.append(
            turning(x, z, [(0.09, 0.0), (0.07, 0.3 * t.limbs), (0.01, 0.5 * t.limbs)], third, 8)
        )
    band = turning(0, 0, [(1.04 * r, high - 0.1), (1.04 * r, high - 0.02)], third, 18)
    return [*solids, band] if t.mark != "plain" else solids


def _train(t: Toy) -> list[Solid]:
    main, second, third = t.paints
    solids, x = [], -0.3 * t.parts
    for i in range(t.parts - 1):
        car = box((x, 0.14, -0.18), (x + 0.4, 0.34 + 0.1 * (i % 2), 0.18), (second, third)[i % 2])
        solids += [t.marked(car, (0, 2), 2 if i % 2 == 0 else 1)]
        solids += [_wheel(x + u, s * 0.215, 0.09, "charcoal") for u in (0.1, 0.3) for s in (-1, 1)]
        solids.append(box((x + 0.4, 0.18, -0.03), (x + 0.5, 0.22, 0.03), "charcoal"))
        x += 0.5
    base = box((x, 0.14, -0.18), (x + 0.72, 0.24, 0.18), third)
    cab = box((x, 0.24, -0.18), (x + 0.26, 0.72 * t.tall, 0.18), main)
    for i in (0, 2):
        cab.faces[i].decal(rect(0.2, 0.14, 0.8, 0.5), (190, 222, 232))
    roof = box((x - 0.05, 0.72 * t.tall, -0.22), (x + 0.31, 0.72 * t.tall + 0.05, 0.22), second)
    ring = ellipse(0.0, 0.38, 0.14, steps=15)[:-1]
    boiler = extruded(ring, x + 0.26, x + 0.72, main, axis=0)
    stack = turning(x + 0.58, 0, [(0.05, 0.52), (0.08, 0.66 * t.tall)], third, 10)
    solids += [base, cab, roof, boiler, stack, *t.hatted(x + 0.58, 0.66 * t.tall, 0, 0.09)]
    wheels = [_wheel(x + u, s * 0.215, 0.1, second) for u in (0.13, 0.36, 0.6) for s in (-1, 1)]
    return solids + wheels


def _blocks(t: Toy) -> list[Solid]:
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
                solid.faces[0].decal(
                    np.concatenate([arc(0.5, 1.0, 0.28, 0.7, 180, 360)]), lit(colour, 0.6)
                )
            else:
                t.marked(solid, (0, 1, 3), (i + 1) % 3)
            solids.append(solid)
        y += h
    return [*solids, *t.hatted(0, y, 0, 0.16)]


def _rings(t: Toy) -> list[Solid]:
    solids = [turning(0, 0, [(0.42, 0.0), (0.4, 0.06)], t.paints[0], 20)]
    y, n = 0.06, t.parts + 1
    for i in range(n):
        r = (0.4 - 0.24 * i / n) * t.wide
        if t.eyes == "square" and i % 2:
            r *= 0.8
        h = 0.15 * t.tall
        solids.append(
            turning(
                0, 0, [(0.85 * r, y), (r, y + h / 2), (0.85 * r, y + h)], t.paints[(i + 1) % 3], 18
            )
        )
        y += h
    return [*solids, ball((0, y + 0.09, 0), (0.1, 0.1, 0.1), t.paints[2])]


def _top(t: Toy) -> list[Solid]:
    r, h = 0.42 * t.wide, 0.36 * t.tall
    solids = [turning(0, 0, [(0.01, 0.0), (0.06, 0.08)], "charcoal", 10)]
    n = t.parts
    heights = np.linspace(0, 1, 2 * n + 1)
    for i in range(2 * n):
        ring = [
            (max(0.06, r * np.sin(np.pi * (0.08 + 0.84 * v))), 0.08 + 2 * h * v)
            for v in heights[i : i + 2]
        ]
        solids.append(turning(0, 0, ring, t.paints[i % 2 if i < n else (i + 1) % 3], 20))
    y = 0.08 + 2 * h
    solids.append(turning(0, 0, [(0.035, y), (0.035, y + 0.24 * t.limbs)], "tan", 8))
    return [*solids, ball((0, y + 0.24 * t.limbs + 0.05, 0), (0.08, 0.06, 0.08), t.paints[2])]


def _boat(t: Toy) -> list[Solid]:
    main, second, third = t.paints
    w = 0.62 * t.wide
    hull = extruded(np.array([(-0.7 * w, 0), (0.7 * w, 0), (w, 0.26), (-w, 0.26)]), -0.2, 0.2, main)
    deck = box((-0.6 * w, 0.26, -0.14), (0.1 * w, 0.42, 0.14), third)
    solids = [hull, t.marked(deck, (0, 2), 1)]
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
    r, h = 0.42 * t.wide, 0.5 * t.tall
    sides = 2 * (t.parts + 5)
    body = turning(0, 0, [(r, 0.06), (r, h)], main, sides)
    for i, face in enumerate(body.faces[:sides]):
        if t.mark in ("striped", "plain"):
            face.colour = second if i % 2 else main
        else:
            face.decal(
                np.array([(0, 1), (0.5, 0), (1, 1), (0.8, 1), (0.5, 0.36), (0.2, 1)]), second
            )
    rims = [turning(0, 0, [(1.06 * r, y), (1.06 * r, y + 0.07)], third, 24) for y in (0.0, h)]
    skin = turning(0, 0, [(0.96 * r, h + 0.07), (0.96 * r, h + 0.075)], "cream", 24)
    sticks = [box((-0.26, h + 0.08, z), (0.36, h + 0.11, z + 0.03), "tan") for z in (-0.1, 0.12)]
    knobs = [
        ball((0.36, h + 0.1, z + 0.015), (0.05, 0.05, 0.05), third, 5, 10) for z in (-0.1, 0.12)
    ]
    return [body, *rims, skin, *sticks, *knobs]


def _doll(t: Toy) -> list[Solid]:
    main, second, third = t.paints
    r, h = 0.32 * t.wide, 0.62 * t.tall
    lower = turning(
        0, 0, [(0.8 * r, 0.0), (1.05 * r, 0.3 * h), (0.9 * r, 0.75 * h), (0.6 * r, h)], main, 20
    )
    belt = turning(0, 0, [(1.06 * r, 0.3 * h), (1.04 * r, 0.38 * h)], second, 20)
    top = h + 0.2
    head = ball((0, top, 0), (0.24, 0.25, 0.24), (244, 206, 172), 9, 18)
    hair = ball((0, top + 0.05, -0.03), (0.26, 0.25, 0.25), third, 9, 18)
    buttons = [
        ball(
            (0, 0.45 * h + 0.45 * h * i / t.parts, r * (1.0 - 0.33 * i / t.parts)),
            (0.04,) * 3,
            second,
            5,
            8,
        )
        for i in range(t.parts)
    ]
    smile = ball((0, top - 0.09, 0.225), (0.06, 0.02, 0.02), "rose", 5, 8)
    return [
        lower,
        belt,
        hair,
        head,
        *buttons,
        *t.face(0, top - 0.03, 0.22, 0.24),
        smile,
        *t.hatted(0, top + 0.26, 0, 0.2),
    ]


_BUILDERS = {
    "robot": _robot, "bear": _bear, "rabbit": _rabbit, "duck": _duck, "rocket": _rocket,
    "train": _train, "block tower": _blocks, "ring stacker": _rings, "spinning top": _top,
    "boat": _boat, "drum": _drum, "wooden doll": _doll,
}  # fmt: skip
