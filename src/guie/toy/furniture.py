"""Furniture in a room, built of boxes and turned parts and seen from anywhere in front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guie.toy.canvas import ellipse, pick, rect
from guie.toy.colour import lit
from guie.toy.photo import Pose, View, blank, develop, frame, placed
from guie.toy.scene import room
from guie.toy.solid import Camera, Solid, bounds, box, cast_shadow, paint, turning
from guie.toy.subject import Subject, a, count

WOODS = {"oak": (204, 158, 108), "walnut": (122, 82, 58), "white": (240, 236, 228), "black": (62, 60, 64),
         "birch": (232, 206, 166), "teak": (172, 110, 66)}  # fmt: skip
FABRICS = ("teal", "mustard", "rust", "olive", "navy", "pink", "grey", "cream", "red", "light blue")
KINDS = ("chair", "stool", "armchair", "sofa", "table", "desk", "bookcase", "dresser", "bed",
         "sideboard", "floor lamp", "bench")  # fmt: skip
BACKS = ("slatted", "barred", "panelled", "padded")
LEGS = ("straight", "turned", "splayed", "sled")


@dataclass(frozen=True)
class Furniture(Subject):
    """A piece of furniture; the numbers of its parts, and sizes in metres."""

    kin = ("kind", "wood", "fabric")

    kind: str
    wood: str
    fabric: str
    back: str
    legs: str
    parts: int
    columns: int
    buttons: bool
    wide: float
    tall: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Furniture:
        return cls(
            kind=pick(rng, KINDS),
            wood=pick(rng, tuple(WOODS)),
            fabric=pick(rng, FABRICS),
            back=pick(rng, BACKS),
            legs=pick(rng, LEGS),
            parts=int(rng.integers(2, 6)),
            columns=int(rng.integers(1, 4)),
            buttons=bool(rng.random() < 0.5),
            wide=float(rng.uniform(0.85, 1.2)),
            tall=float(rng.uniform(0.85, 1.2)),
        )

    @property
    def name(self) -> str:
        return f"{self._style}-{self.kind}".replace(" ", "-")

    @property
    def _style(self) -> str:
        return self.fabric if self.kind in ("armchair", "sofa", "bed", "floor lamp") else self.wood

    @property
    def phrase(self) -> str:
        legs, back = f"{self.legs} legs", f"{a(self.back)} back"
        vase = f" and {a(self.fabric)} vase on it" if self.buttons else ""
        button = "buttoned " if self.buttons else ""
        arms = f"{'high' if self.square else 'low'} arms"
        seat = f"{button}{self.fabric} {self.kind}"
        details = {
            "chair": f"{back}, {a(self.fabric)} seat and {legs}",
            "stool": f"a {'square' if self.square else 'round'} {self.fabric} seat and {legs}",
            "bench": f"{count(self.parts, 'slat')}, {back if self.buttons else 'no back'} and {legs}",
            "table": f"a round top{vase}" if self.columns == 1 else legs
            + " and a shelf" * (self.columns == 3) + vase,
            "desk": f"{count(self.parts, 'drawer')}, {legs}" + " and a screen on it" * self.buttons,
            "bookcase": f"{count(self.parts, 'shelf')} of books",
            "dresser": f"{count(self.parts, 'row')} of {count(self.columns, 'drawer')}{vase}",
            "sideboard": f"{count(self.parts, 'door')}, {legs}{vase}",
        }  # fmt: skip
        if self.kind in details:
            return f"{a(self.wood)} {self.kind} with {details[self.kind]}"
        return {
            "armchair": f"{a(seat)} with {arms} and {self.legs} {self.wood} legs",
            "sofa": f"{a(seat)} with {count(min(self.parts, 4), 'cushion')}, {arms} and {self.legs} {self.wood} legs",
            "bed": f"a bed with {a(self.fabric)} {'striped ' * self.buttons}blanket and {a(self.back)} {self.wood} headboard",
            "floor lamp": f"a floor lamp with {a(self.fabric)} {self._shade} shade and {a(self.wood)} foot",
        }[self.kind]

    @property
    def square(self) -> bool:
        """Whether the seat of a stool is square, the arms of a chair high."""
        return self.back in ("slatted", "panelled")

    @property
    def _shade(self) -> str:
        shapes = {
            "slatted": "flared",
            "barred": "straight",
            "panelled": "pointed",
            "padded": "bulging",
        }
        return shapes[self.back]

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng)
        scene = room(rng, size, (0.52, 0.7))
        camera = Camera(float(rng.uniform(-36, 36)), float(rng.uniform(6, 28)), 5.0)
        solids = _BUILDERS[self.kind](self)
        pose = Pose(scale=(0.78, 1.0), turn_deg=3, tilt=0.0, shift=0.08, ground=(0.84, 0.98))
        matrix = placed(rng, bounds(solids, camera), size, pose)
        pen, shadow = blank(size, matrix), blank(size, matrix)
        cast_shadow(shadow, solids, camera)
        paint(pen, solids, camera)
        return develop(rng, scene, pen.image, shadow=shadow.image, obstacles=0.3)

    @property
    def timber(self) -> tuple[int, int, int]:
        """The colour of the wood."""
        return WOODS[self.wood]

    def stand(self, w: float, d: float, top: float) -> list[Solid]:
        """Four legs (or two sleds) under a slab of half-sizes `w` and `d`."""
        thick, timber = 0.035, self.timber
        corners = [(x, z) for x in (-w + 0.05, w - 0.05) for z in (-d + 0.05, d - 0.05)]
        if self.legs == "turned":
            shape = [(0.022, 0.0), (0.045, top * 0.7), (0.045, top)]
            return [turning(x, z, shape, timber, 8) for x, z in corners]
        if self.legs == "splayed":
            return [
                turning(x, z, [(0.02, 0.0), (0.06, top)], lit(timber, 0.9), 4) for x, z in corners
            ]
        posts = [
            box((x - thick, 0, z - thick), (x + thick, top, z + thick), timber) for x, z in corners
        ]
        if self.legs == "sled":
            posts = [
                box((x - thick, 0.05, z - thick), (x + thick, top, z + thick), timber)
                for x, z in corners
            ]
            posts += [
                box((x - thick, 0, -d), (x + thick, 0.05, d), timber) for x in (-w + 0.05, w - 0.05)
            ]
        return posts

    def rest(self, w: float, z: float, low: float, high: float, thick: float = 0.05) -> list[Solid]:
        """A back between two heights at depth `z` (its rear face)."""
        timber = self.timber
        if self.back == "padded":
            return [_padded((-w, low, z), (w, high, z + 1.6 * thick), self.fabric, self.buttons)]
        if self.back == "panelled":
            return [box((-w, low, z), (w, high, z + thick), timber)]
        posts = [box((x, low, z), (x + 0.06, high, z + thick), timber) for x in (-w, w - 0.06)]
        if self.back == "slatted":
            step = (high - low) / (self.parts + 1)
            ys = [low + step * (i + 1) for i in range(self.parts)]
            return posts + [
                box((-w + 0.06, y, z), (w - 0.06, y + 0.5 * step, z + thick), timber) for y in ys
            ]
        xs = np.linspace(-w + 0.12, w - 0.14, self.parts + 1)
        bars = [box((x, low, z), (x + 0.035, high - 0.08, z + thick), timber) for x in xs]
        return [
            *posts,
            *bars,
            box((-w + 0.06, high - 0.08, z), (w - 0.06, high, z + thick), timber),
        ]


def _padded(low, high, colour, buttons: bool) -> Solid:
    """An upholstered block with a seam, and buttons on its front."""
    body = box(low, high, colour)
    body.faces[0].decal(rect(0.03, 0.06, 0.97, 0.94, 0.08), lit(colour, 1.1))
    if buttons:
        for x in np.linspace(0.2, 0.8, 4):
            for y in (0.35, 0.7):
                body.faces[0].decal(ellipse(x, y, 0.022, 0.04, 10), lit(colour, 0.7))
    return body


def _chair(f: Furniture) -> list[Solid]:
    w, seat, top = 0.24 * f.wide, 0.45, 0.95 * f.tall
    cushion = box((-w, seat + 0.04, -w + 0.06), (w, seat + 0.1, w), f.fabric)
    base = box((-w, seat, -w), (w, seat + 0.04, w), f.timber)
    return [*f.stand(w, w, seat), base, cushion, *f.rest(w, -w, seat + 0.1, top)]


def _stool(f: Furniture) -> list[Solid]:
    w, seat = 0.2 * f.wide, 0.62 * f.tall
    sides = 4 if f.square else 16
    pad = turning(0, 0, [(w, seat), (w + 0.03, seat + 0.04), (w, seat + 0.1)], f.fabric, sides)
    rung = box((-w, 0.2, -0.02), (w, 0.24, 0.02), f.timber)
    return [*f.stand(w, w, seat), rung, pad]


def _bench(f: Furniture) -> list[Solid]:
    w, d, seat = 0.65 * f.wide, 0.22, 0.45
    step = 2 * d / f.parts
    slats = [
        box((-w, seat, -d + i * step), (w, seat + 0.04, -d + (i + 0.78) * step), f.timber)
        for i in range(f.parts)
    ]
    solids = [*f.stand(w, d, seat), *slats]
    return solids + (f.rest(w, -d, seat + 0.04, 0.85 * f.tall) if f.buttons else [])


def _armchair(f: Furniture) -> list[Solid]:
    return _seating(f, 0.36 * f.wide, 1)


def _sofa(f: Furniture) -> list[Solid]:
    return _seating(f, 0.85 * f.wide, min(f.parts, 4))


def _seating(f: Furniture, w: float, cushions: int) -> list[Solid]:
    """An upholstered seat of half-width `w` between two arms."""
    d, foot, seat, top = 0.36, 0.14, 0.4, 0.86 * f.tall
    arm, high = 0.14, 0.6 if f.square else 0.47
    dark, step = lit(f.fabric, 0.86), 2 * w / cushions
    solids = [*f.stand(w + arm, d, foot), box((-w, foot, -d), (w, seat - 0.08, d), dark)]
    for i in range(cushions):
        x0, x1 = -w + i * step + 0.008, -w + (i + 1) * step - 0.008
        solids.append(box((x0, seat - 0.08, -d + 0.2), (x1, seat + 0.08, d), lit(f.fabric, 1.08)))
        solids.append(_padded((x0, seat - 0.08, -d), (x1, top, -d + 0.2), f.fabric, f.buttons))
    for x0, x1 in ((-w - arm, -w), (w, w + arm)):
        solids.append(box((x0, foot, -d), (x1, high, d), f.fabric))
        if f.square:
            solids.append(box((x0, high, -d + 0.06), (x1, high + 0.05, d), f.timber))
    return solids


def _table(f: Furniture) -> list[Solid]:
    w, d, top = 0.65 * f.wide, 0.4, 0.72
    if f.columns == 1:
        slab = turning(0, 0, [(w, top), (w, top + 0.05)], f.timber, 24)
        foot = turning(0, 0, [(0.34, 0.0), (0.06, 0.08), (0.05, top)], lit(f.timber, 0.9), 12)
        return [foot, slab, *_vase(f, top + 0.05)]
    slab = box((-w, top, -d), (w, top + 0.05, d), f.timber)
    shelf = box((-w + 0.12, 0.2, -d + 0.12), (w - 0.12, 0.23, d - 0.12), lit(f.timber, 0.9))
    return [*f.stand(w, d, top), *[shelf] * (f.columns == 3), slab, *_vase(f, top + 0.05)]


def _vase(f: Furniture, top: float) -> list[Solid]:
    if not f.buttons:
        return []
    return [turning(0.05, 0, [(0.05, top), (0.09, top + 0.1), (0.04, top + 0.24)], f.fabric, 12)]


def _desk(f: Furniture) -> list[Solid]:
    w, d, top = 0.62 * f.wide, 0.3, 0.72
    slab = box((-w, top, -d), (w, top + 0.045, d), f.timber)
    chest = box((w - 0.38, 0.1, -d + 0.03), (w - 0.02, top, d - 0.02), f.timber)
    _drawers(chest, f, f.parts, 1)
    legs = [leg for leg in f.stand(w, d, top) if leg.high[0] < w - 0.4]
    screen = box((-w * 0.5, top + 0.045, -0.1), (-w * 0.5 + 0.4, top + 0.32, -0.07), "charcoal")
    screen.faces[0].decal(rect(0.05, 0.07, 0.95, 0.93), lit(f.fabric, 1.1))
    return [*legs, chest, slab, *([screen] if f.buttons else [])]


def _drawers(chest: Solid, f: Furniture, rows: int, columns: int) -> None:
    """Drawer fronts with knobs or bars on the front face."""
    front = chest.faces[0]
    for row in range(rows):
        for column in range(columns):
            x, y, u, v = column / columns, row / rows, 1 / columns, 1 / rows
            panel = rect(x + 0.07 * u, y + 0.1 * v, x + 0.93 * u, y + 0.94 * v)
            front.decal(panel, lit(f.fabric, 1.0) if f.back == "padded" else lit(f.timber, 1.14))
            handle = lit(f.timber, 0.4) if f.wood in ("white", "birch", "oak") else (222, 190, 120)
            if f.legs in ("turned", "splayed"):
                front.decal(ellipse(x + 0.5 * u, y + 0.5 * v, 0.03, 0.03, 10), handle)
            else:
                front.decal(rect(x + 0.3 * u, y + 0.24 * v, x + 0.7 * u, y + 0.32 * v), handle)


def _bookcase(f: Furniture) -> list[Solid]:
    w, d, top, t = 0.42 * f.wide, 0.15, 1.6 * f.tall, 0.035
    back = box((-w, 0, -d), (w, top, -d + 0.02), lit(f.timber, 0.8))
    sides = [box((x, 0, -d + 0.02), (x + t, top, d), f.timber) for x in (-w, w - t)]
    solids, step = [back, *sides], (top - t) / f.parts
    rng = np.random.default_rng([f.parts, f.columns, int(f.wide * 1e4), int(f.tall * 1e4)])
    for i in range(f.parts + 1):
        y = i * step
        solids.append(box((-w + t, y, -d + 0.02), (w - t, y + t, d), f.timber))
        x = -w + 0.06
        while i < f.parts and x < w - 0.14 - 0.3 * rng.random():
            thick, high = float(rng.uniform(0.04, 0.09)), float(rng.uniform(0.45, 0.85)) * step
            solids.append(
                box(
                    (x, y + t, -d + 0.04),
                    (x + thick, y + t + high * 0.9, d - 0.06),
                    pick(rng, FABRICS),
                )
            )
            x += thick + 0.004
    return solids


def _dresser(f: Furniture) -> list[Solid]:
    w, d, top = (0.3 + 0.12 * f.columns) * f.wide, 0.24, 0.9 * f.tall
    body = box((-w, 0.14, -d), (w, top, d), f.timber)
    _drawers(body, f, f.parts, f.columns)
    slab = box((-w - 0.03, top, -d - 0.02), (w + 0.03, top + 0.04, d + 0.03), lit(f.timber, 0.85))
    return [*f.stand(w, d, 0.14), body, slab, *_vase(f, top + 0.04)]


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
        body.faces[0].decal(ellipse(side, 0.5, 0.011, 0.04, 10), (222, 190, 120))
    return [*f.stand(w, d, 0.2), body, *_vase(f, top)]


def _bed(f: Furniture) -> list[Solid]:
    w, d = 0.55 * f.wide, 0.85
    frame_ = box((-w, 0.16, -d), (w, 0.32, d), f.timber)
    mattress = box((-w + 0.03, 0.32, -d + 0.08), (w - 0.03, 0.48, d - 0.02), "white")
    blanket = box((-w + 0.01, 0.48, -0.25), (w - 0.01, 0.54, d), f.fabric)
    for i in range(f.parts if f.buttons else 0):
        y = (i + 0.3) / f.parts
        blanket.faces[4].decal(rect(0, y, 1, y + 0.4 / f.parts), lit(f.fabric, 1.35))
    count_ = 1 + (f.columns > 1)
    span = 2 * (w - 0.08) / count_
    pillows = [
        box(
            (-w + 0.08 + i * span + 0.02, 0.48, -d + 0.12),
            (-w + 0.06 + (i + 1) * span, 0.6, -d + 0.45),
            "cream",
        )
        for i in range(count_)
    ]
    return [
        *f.stand(w, d, 0.16),
        frame_,
        mattress,
        blanket,
        *pillows,
        *f.rest(w, -d - 0.06, 0.16, 1.0 * f.tall),
    ]


def _lamp(f: Furniture) -> list[Solid]:
    top, wide = 1.3 * f.tall, 0.2 * f.wide
    shade = {
        "slatted": [(wide * 1.2, top), (wide * 0.7, top + 0.3)],
        "barred": [(wide, top), (wide, top + 0.3)],
        "panelled": [(wide * 1.4, top), (0.03, top + 0.24)],
        "padded": [
            (wide * 0.7, top),
            (wide * 1.2, top + 0.12),
            (wide * 1.2, top + 0.2),
            (wide * 0.7, top + 0.32),
        ],
    }[f.back]
    pole = turning(0, 0, [(0.02, 0.05), (0.02, top)], f.timber, 6)
    feet = [turning(0, 0, [(0.18, 0.0), (0.16, 0.05)], f.timber, 16)]
    if f.legs in ("splayed", "straight"):
        feet = [box((-0.25, 0.0, -0.02), (0.25, 0.05, 0.02), f.timber)]
    balls = [turning(0, 0, [(0.02, y), (0.05, y + 0.05), (0.02, y + 0.1)], lit(f.timber, 0.8), 10)
             for y in np.linspace(0.15, top - 0.2, f.parts)]  # fmt: skip
    return [*feet, *(balls if f.buttons else []), pole, turning(0, 0, shade, f.fabric, 16)]


_BUILDERS = {
    "chair": _chair, "stool": _stool, "armchair": _armchair, "sofa": _sofa, "table": _table,
    "desk": _desk, "bookcase": _bookcase, "dresser": _dresser, "bed": _bed,
    "sideboard": _sideboard, "floor lamp": _lamp, "bench": _bench,
}  # fmt: skip
