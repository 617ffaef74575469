"""Furniture in a room, built of boxes and turned parts and seen from anywhere in front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from toydomains.kit.colour import RGB, lit
from toydomains.kit.pen import ellipse, pick, rect
from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import room
from toydomains.kit.solid import Camera, Solid, box, turning
from toydomains.kit.subject import Subject, a, chance, count, listed, one_of, real, whole

KINDS = (
    "chair", "stool", "armchair", "sofa", "table", "desk", "bookcase", "dresser", "bed",
    "sideboard", "floor lamp", "bench",
)  # fmt: skip
UPHOLSTERED = ("armchair", "sofa", "bed", "floor lamp")
WOODS: dict[str, RGB] = {
    "oak": (204, 158, 108), "walnut": (122, 82, 58), "white": (240, 236, 228),
    "black": (62, 60, 64), "birch": (232, 206, 166), "teak": (172, 110, 66),
}  # fmt: skip
FABRICS = ("teal", "mustard", "rust", "olive", "navy", "pink", "grey", "cream", "red", "light blue")
BACKS = ("slatted", "barred", "panelled", "padded")
SHADES = {"slatted": "flared", "barred": "straight", "panelled": "pointed", "padded": "bulging"}
LEGS = ("straight", "turned", "splayed", "sled")


@dataclass(frozen=True)
class Furniture(Subject):
    """A piece of furniture; the numbers of its parts, and sizes in metres."""

    kin = ("kind", "wood", "fabric")
    title = "{0.style}-{0.kind}"

    kind: str = one_of(KINDS)
    wood: str = one_of(tuple(WOODS))
    fabric: str = one_of(FABRICS)
    back: str = one_of(BACKS)
    legs: str = one_of(LEGS)
    parts: int = whole(2, 6)
    columns: int = whole(1, 4)
    buttons: bool = chance(0.5)
    wide: float = real(0.85, 1.2)
    tall: float = real(0.85, 1.2)

    @property
    def style(self) -> str:
        """What its name says after the kind: the fabric or the wood."""
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
        """Place it indoors, seen from somewhere in front."""
        size = frame(rng)
        scene = room(rng, size, (0.52, 0.7))
        camera = Camera(float(rng.uniform(-36, 36)), float(rng.uniform(6, 28)), 5.0)
        solids = FURNITURE[self.kind](self)
        pose = Pose(scale=(0.78, 1.0), turn_deg=3, tilt=0.0, shift=0.08, ground=(0.84, 0.98))
        return portrait(rng, scene, solids, camera, pose, obstacles=0.3)


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


def padded(low: Sequence[float], high: Sequence[float], colour: str, buttons: bool) -> Solid:
    """Return an upholstered block with a seam, and buttons on its front."""
    body = box(low, high, colour)
    body.faces[0].decal(rect(0.03, 0.06, 0.97, 0.94, 0.08), lit(colour, 1.1))
    if buttons:
        for x in np.linspace(0.2, 0.8, 4):
            for y in (0.35, 0.7):
                body.faces[0].decal(ellipse(x, y, 0.022, 0.04, 10), lit(colour, 0.7))
    return body


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
