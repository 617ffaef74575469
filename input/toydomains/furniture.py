"""Furniture in a room, built of boxes and turned parts and seen from anywhere in front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from toydomains.kit.colour import RGB, lit
from toydomains.kit.outline import ellipse, rect
from toydomains.kit.pen import pick
from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import room
from toydomains.kit.solid import Camera, Solid, Solids, box, turning
from toydomains.kit.subject import Subject, a, chance, count, listed, one_of, real

UPHOLSTERED = ("armchair", "sofa", "bed", "floor lamp")
WOODS: dict[str, RGB] = {
    "oak": (204, 158, 108), "walnut": (122, 82, 58), "white": (240, 236, 228),
    "black": (62, 60, 64), "birch": (232, 206, 166), "teak": (172, 110, 66),
}  # fmt: skip
FABRICS = ("teal", "mustard", "rust", "olive", "navy", "pink", "grey", "cream", "red", "light blue")
BACKS = ("slatted", "barred", "panelled", "padded")
SHADES = {"slatted": "flared", "barred": "straight", "panelled": "pointed", "padded": "bulging"}
LEGS = ("straight", "turned", "splayed", "sled")


BRASS = (222, 190, 120)


def stand(f: Furniture, w: float, d: float, top: float) -> Solids:
    """Yield four legs (or two sleds) under a slab of half-sizes `w` and `d`."""
    x, z, t, foot = w - 0.05, d - 0.05, 0.035, 0.05 if f.legs == "sled" else 0.0
    for u, v in product((-x, x), (-z, z)):
        if f.legs == "turned":
            yield turning(u, v, [(0.022, 0.0), (0.045, top * 0.7), (0.045, top)], f.timber, 8)
        elif f.legs == "splayed":
            yield turning(u, v, [(0.02, 0.0), (0.06, top)], lit(f.timber, 0.9), 4)
        else:
            yield box((u - t, foot, v - t), (u + t, top, v + t), f.timber)
    for u in (-x, x) if foot else ():
        yield box((u - t, 0, -d), (u + t, foot, d), f.timber)


def rest(f: Furniture, w: float, z: float, low: float, high: float) -> Solids:
    """Yield a back between two heights at depth `z` (its rear face)."""
    back, inner = z + 0.05, w - 0.06
    if f.back == "padded":
        yield padded(f, (-w, low, z), (w, high, z + 1.6 * 0.05))
    elif f.back == "panelled":
        yield box((-w, low, z), (w, high, back), f.timber)
    else:
        for x in (-w, inner):
            yield box((x, low, z), (x + 0.06, high, back), f.timber)
    if f.back == "slatted":
        step = (high - low) / (f.parts + 1)
        for y in low + step * np.arange(1, f.parts + 1):
            yield box((-inner, y, z), (inner, y + 0.5 * step, back), f.timber)
    elif f.back == "barred":
        for x in np.linspace(-w + 0.12, w - 0.14, f.parts + 1):
            yield box((x, low, z), (x + 0.035, high - 0.08, back), f.timber)
        yield box((-inner, high - 0.08, z), (inner, high, back), f.timber)


def vase(f: Furniture, top: float) -> Solids:
    """Yield a vase at height `top` if the piece has one."""
    if f.buttons:
        yield turning(0.05, 0, [(0.05, top), (0.09, top + 0.1), (0.04, top + 0.24)], f.fabric, 12)


def drawers(f: Furniture, chest: Solid, columns: int) -> Solid:
    """Draw rows of drawer fronts with knobs or bars on the front face; return the chest."""
    front, fill = chest.faces[0], f.fabric if f.back == "padded" else lit(f.timber, 1.14)
    handle = lit(f.timber, 0.4) if f.wood in ("white", "birch", "oak") else BRASS
    u, v = 1 / columns, 1 / f.parts
    for row, column in product(range(f.parts), range(columns)):
        x, y = column / columns, row / f.parts
        front.decal(rect(x + 0.07 * u, y + 0.1 * v, x + 0.93 * u, y + 0.94 * v), fill)
        if f.legs in ("turned", "splayed"):
            front.decal(ellipse(x + 0.5 * u, y + 0.5 * v, 0.03, 0.03, 10), handle)
        else:
            front.decal(rect(x + 0.3 * u, y + 0.24 * v, x + 0.7 * u, y + 0.32 * v), handle)
    return chest


def padded(f: Furniture, low: Sequence[float], high: Sequence[float]) -> Solid:
    """Return an upholstered block with a seam, and buttons on its front."""
    body = box(low, high, f.fabric)
    body.faces[0].decal(rect(0.03, 0.06, 0.97, 0.94, 0.08), lit(f.fabric, 1.1))
    for x, y in product(np.linspace(0.2, 0.8, 4), (0.35, 0.7)) if f.buttons else ():
        body.faces[0].decal(ellipse(x, y, 0.022, 0.04, 10), lit(f.fabric, 0.7))
    return body


def _seating(f: Furniture) -> Solids:
    """An upholstered seat between two arms; a sofa has several cushions."""
    w, cushions = (0.36 * f.wide, 1) if f.kind == "armchair" else (0.85 * f.wide, f.cushions)
    d, foot, seat, top = 0.36, 0.14, 0.4, 0.86 * f.tall
    arm, high, step = 0.14, 0.6 if f.square else 0.47, 2 * w / cushions
    yield from stand(f, w + arm, d, foot)
    yield box((-w, foot, -d), (w, seat - 0.08, d), lit(f.fabric, 0.86))
    for i in range(cushions):
        x0, x1 = -w + i * step + 0.008, -w + (i + 1) * step - 0.008
        yield box((x0, seat - 0.08, -d + 0.2), (x1, seat + 0.08, d), lit(f.fabric, 1.08))
        yield padded(f, (x0, seat - 0.08, -d), (x1, top, -d + 0.2))
    for x0, x1 in ((-w - arm, -w), (w, w + arm)):
        yield box((x0, foot, -d), (x1, high, d), f.fabric)
        if f.square:
            yield box((x0, high, -d + 0.06), (x1, high + 0.05, d), f.timber)


def _bed(f: Furniture) -> Solids:
    """A single or double bed, its head at the back, the blanket plain or striped."""
    w, d = 0.55 * f.wide, 0.85
    yield from stand(f, w, d, 0.16)
    yield box((-w, 0.16, -d), (w, 0.32, d), f.timber)
    yield box((-w + 0.03, 0.32, -d + 0.08), (w - 0.03, 0.48, d - 0.02), "white")
    blanket = box((-w + 0.01, 0.48, -0.25), (w - 0.01, 0.54, d), f.fabric)
    for i in range(f.parts if f.buttons else 0):
        y = (i + 0.3) / f.parts
        blanket.faces[4].decal(rect(0, y, 1, y + 0.4 / f.parts), lit(f.fabric, 1.35))
    yield blanket
    for x0, x1 in pairwise(np.linspace(-w + 0.08, w - 0.08, 2 + (f.columns > 1))):  # pillows
        yield box((x0 + 0.02, 0.48, -d + 0.12), (x1 - 0.02, 0.6, -d + 0.45), "cream")
    yield from rest(f, w, -d - 0.06, 0.16, f.tall)


def _chair(f: Furniture) -> Solids:
    w, seat = 0.24 * f.wide, 0.45
    yield from stand(f, w, w, seat)
    yield box((-w, seat, -w), (w, seat + 0.04, w), f.timber)
    yield box((-w, seat + 0.04, -w + 0.06), (w, seat + 0.1, w), f.fabric)
    yield from rest(f, w, -w, seat + 0.1, 0.95 * f.tall)


def _stool(f: Furniture) -> Solids:
    w, seat = 0.2 * f.wide, 0.62 * f.tall
    yield from stand(f, w, w, seat)
    yield box((-w, 0.2, -0.02), (w, 0.24, 0.02), f.timber)
    pad = [(w, seat), (w + 0.03, seat + 0.04), (w, seat + 0.1)]
    yield turning(0, 0, pad, f.fabric, 4 if f.square else 16)


def _bench(f: Furniture) -> Solids:
    w, d, seat = 0.65 * f.wide, 0.22, 0.45
    yield from stand(f, w, d, seat)
    step = 2 * d / f.parts
    for i in range(f.parts):
        z0, z1 = -d + i * step, -d + (i + 0.78) * step
        yield box((-w, seat, z0), (w, seat + 0.04, z1), f.timber)
    if f.buttons:
        yield from rest(f, w, -d, seat + 0.04, 0.85 * f.tall)


def _table(f: Furniture) -> Solids:
    w, d, top = 0.65 * f.wide, 0.4, 0.72
    if f.columns == 1:
        foot = [(0.34, 0.0), (0.06, 0.08), (0.05, top)]
        yield turning(0, 0, foot, lit(f.timber, 0.9), 12)
        yield turning(0, 0, [(w, top), (w, top + 0.05)], f.timber, 24)
    else:
        yield from stand(f, w, d, top)
        if f.columns == 3:  # a shelf
            low, high = (-w + 0.12, 0.2, -d + 0.12), (w - 0.12, 0.23, d - 0.12)
            yield box(low, high, lit(f.timber, 0.9))
        yield box((-w, top, -d), (w, top + 0.05, d), f.timber)
    yield from vase(f, top + 0.05)


def _desk(f: Furniture) -> Solids:
    w, d, top = 0.62 * f.wide, 0.3, 0.72
    yield from (leg for leg in stand(f, w, d, top) if leg.high[0] < w - 0.4)
    yield drawers(f, box((w - 0.38, 0.1, -d + 0.03), (w - 0.02, top, d - 0.02), f.timber), 1)
    yield box((-w, top, -d), (w, top + 0.045, d), f.timber)
    if f.buttons:
        low, high = (-w * 0.5, top + 0.045, -0.1), (-w * 0.5 + 0.4, top + 0.32, -0.07)
        screen = box(low, high, "charcoal")
        screen.faces[0].decal(rect(0.05, 0.07, 0.95, 0.93), lit(f.fabric, 1.1))
        yield screen


def _bookcase(f: Furniture) -> Solids:
    w, d, top, t = 0.42 * f.wide, 0.15, 1.6 * f.tall, 0.035
    yield box((-w, 0, -d), (w, top, -d + 0.02), lit(f.timber, 0.8))
    for x in (-w, w - t):
        yield box((x, 0, -d + 0.02), (x + t, top, d), f.timber)
    step = (top - t) / f.parts
    # The class's own books: the same in every view.
    rng = np.random.default_rng([f.parts, f.columns, int(f.wide * 1e4), int(f.tall * 1e4)])
    for i in range(f.parts + 1):
        y = i * step + t
        yield box((-w + t, i * step, -d + 0.02), (w - t, y, d), f.timber)
        x, end = (-w + 0.06, w - 0.14 - 0.3 * rng.random()) if i < f.parts else (w, w)
        while x < end:
            thick, high = rng.uniform(0.04, 0.09), rng.uniform(0.45, 0.85) * (0.9 * step)
            yield box((x, y, -d + 0.04), (x + thick, y + high, d - 0.06), pick(rng, FABRICS))
            x += thick + 0.004


def _dresser(f: Furniture) -> Solids:
    w, d, top = (0.3 + 0.12 * f.columns) * f.wide, 0.24, 0.9 * f.tall
    yield from stand(f, w, d, 0.14)
    yield drawers(f, box((-w, 0.14, -d), (w, top, d), f.timber), f.columns)
    slab = (-w - 0.03, top, -d - 0.02), (w + 0.03, top + 0.04, d + 0.03)
    yield box(*slab, lit(f.timber, 0.85))
    yield from vase(f, top + 0.04)


def _sideboard(f: Furniture) -> Solids:
    w, d, top = 0.75 * f.wide, 0.22, 0.66 * f.tall
    yield from stand(f, w, d, 0.2)
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
    yield body
    yield from vase(f, top)


def _lamp(f: Furniture) -> Solids:
    top, wide = 1.3 * f.tall, 0.2 * f.wide
    if f.legs in ("splayed", "straight"):
        yield box((-0.25, 0.0, -0.02), (0.25, 0.05, 0.02), f.timber)
    else:
        yield turning(0, 0, [(0.18, 0.0), (0.16, 0.05)], f.timber, 16)
    for y in np.linspace(0.15, top - 0.2, f.parts) if f.buttons else ():
        ball = [(0.02, y), (0.05, y + 0.05), (0.02, y + 0.1)]
        yield turning(0, 0, ball, lit(f.timber, 0.8), 10)
    yield turning(0, 0, [(0.02, 0.05), (0.02, top)], f.timber, 6)
    shade = {
        "slatted": [(1.2, 0.0), (0.7, 0.3)],
        "barred": [(1.0, 0.0), (1.0, 0.3)],
        "panelled": [(1.4, 0.0), (0.15, 0.24)],
        "padded": [(0.7, 0.0), (1.2, 0.12), (1.2, 0.2), (0.7, 0.32)],
    }[f.back]
    yield turning(0, 0, [(wide * r, top + y) for r, y in shade], f.fabric, 16)


FURNITURE = {
    "chair": _chair, "stool": _stool, "armchair": _seating, "sofa": _seating, "table": _table,
    "desk": _desk, "bookcase": _bookcase, "dresser": _dresser, "bed": _bed,
    "sideboard": _sideboard, "floor lamp": _lamp, "bench": _bench,
}  # fmt: skip


@dataclass(frozen=True)
class Furniture(Subject):
    """A piece of furniture; the numbers of its parts, and sizes in metres."""

    kin = ("kind", "wood", "fabric")
    title = "{0.style}-{0.kind}"

    kind: str = one_of(tuple(FURNITURE))
    wood: str = one_of(tuple(WOODS))
    fabric: str = one_of(FABRICS)
    back: str = one_of(BACKS)
    legs: str = one_of(LEGS)
    parts: int = one_of(range(2, 6))
    columns: int = one_of(range(1, 4))
    buttons: bool = chance(0.5)
    wide: float = real(0.85, 1.2)
    tall: float = real(0.85, 1.2)

    @property
    def style(self) -> str:
        """The first part of its name: the fabric or the wood."""
        return self.fabric if self.kind in UPHOLSTERED else self.wood

    @property
    def phrase(self) -> str:
        if self.kind == "bed":
            stripes = "striped " * self.buttons
            return f"a bed with {a(self.fabric)} {stripes}blanket and {a(self.back)} {self.wood} headboard"
        if self.kind == "floor lamp":
            return f"a floor lamp with {a(self.fabric)} {SHADES[self.back]} shade and {a(self.wood)} foot"
        if self.kind in UPHOLSTERED:
            cushions = count(self.cushions, "cushion") if self.kind == "sofa" else ""
            arms = f"{'high' if self.square else 'low'} arms"
            seat = a("buttoned " * self.buttons + f"{self.fabric} {self.kind}")
            return f"{seat} with {listed(cushions, arms, f'{self.legs} {self.wood} legs')}"
        return f"{a(self.wood)} {self.kind} with {self._details}"

    @property
    def _details(self) -> str:
        """The visible parts of a wooden piece."""
        legs, back = f"{self.legs} legs", a(f"{self.back} back")
        vase = f"{a(self.fabric)} vase on it" if self.buttons else ""
        screen = "a screen on it" if self.buttons else ""
        shape = "square" if self.square else "round"
        shelf = "a shelf" if self.columns == 3 else ""
        top = ("a round top",) if self.columns == 1 else (legs, shelf)
        rows = f"{count(self.parts, 'row')} of {count(self.columns, 'drawer')}"
        return listed(
            *{
                "chair": (back, f"{a(self.fabric)} seat", legs),
                "stool": (f"a {shape} {self.fabric} seat", legs),
                "bench": (count(self.parts, "slat"), back if self.buttons else "no back", legs),
                "table": (*top, vase),
                "desk": (count(self.parts, "drawer"), legs, screen),
                "bookcase": (f"{count(self.parts, 'shelf')} of books",),
                "dresser": (rows, vase),
                "sideboard": (count(self.parts, "door"), legs, vase),
            }[self.kind]
        )

    @property
    def square(self) -> bool:
        """Whether the seat of a stool is square, the arms of a chair high."""
        return self.back in ("slatted", "panelled")

    @property
    def cushions(self) -> int:
        """The number of cushions of a sofa."""
        return min(self.parts, 4)

    @property
    def timber(self) -> RGB:
        """The colour of the wood."""
        return WOODS[self.wood]

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng)
        scene = room(rng, size, (0.52, 0.7))
        camera = Camera(rng.uniform(-36, 36), rng.uniform(6, 28), 5.0)
        pose = Pose(scale=(0.78, 1.0), turn_deg=3, tilt=0.0, shift=0.08, ground=(0.84, 0.98))
        return portrait(rng, scene, FURNITURE[self.kind](self), camera, pose, obstacles=0.3)
