"""Packaged goods: boxes, cans, bottles, jars, cartons, pouches. The label makes the class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guie.toy.canvas import (
    GLEAM,
    ROUND,
    Pen,
    arc,
    ellipse,
    mirrored,
    pick,
    rect,
    star,
)  # fmt: skip
from guie.toy.colour import PALETTES, lit
from guie.toy.lettering import Lettering, invented
from guie.toy.ornament import EMBLEMS, emblem, pattern
from guie.toy.photo import Pose, View, blank, develop, frame, placed
from guie.toy.scene import room
from guie.toy.solid import Camera, Face, Solid, bounds, box, brightness, cast_shadow
from guie.toy.subject import Subject, a

GOODS = {
    "box": ("tea", "oats", "soap", "rice", "pasta", "cocoa"),
    "carton": ("milk", "juice", "soup", "cream"),
    "can": ("soup", "beans", "cocoa", "nuts", "soda"),
    "bottle": ("juice", "oil", "soap", "syrup"),
    "jar": ("jam", "honey", "nuts", "olives"),
    "pouch": ("coffee", "rice", "nuts", "flour"),
}
LAYOUTS = (
    "banded",
    "round",
    "diagonal",
    "arched",
    "wavy",
    "rayed",
    "framed",
    "striped",
    "dotted",
    "split",
)
COUNTERS = (
    ("oak", "on a wooden shelf"),
    ("walnut", "on a dark wooden shelf"),
    ("white marble", "on a marble counter"),
    ("slate", "on a slate counter"),
    ("checked cloth", "on a checked tablecloth"),
    ("linen", "on a linen tablecloth"),
    ("terrazzo", "on a terrazzo counter"),
)
# Outlines of round vessels: (radius, height from the top), the label between `LABEL` heights.
VESSELS = {
    "can": ([(0.46, 0.0), (0.5, 0.03), (0.5, 0.97), (0.46, 1.0)], (0.07, 0.93)),
    "bottle": (
        [
            (0.17, 0.0),
            (0.17, 0.2),
            (0.24, 0.28),
            (0.46, 0.42),
            (0.5, 0.5),
            (0.5, 0.96),
            (0.46, 1.0),
        ],
        (0.5, 0.9),
    ),
    "jar": ([(0.42, 0.0), (0.43, 0.16), (0.5, 0.24), (0.5, 0.93), (0.43, 1.0)], (0.32, 0.84)),
}


@dataclass(frozen=True)
class Package(Subject):
    """A product; the height is a multiple of the width."""

    kin = ("form", "goods", "palette", "layout")

    form: str
    goods: str
    brand: str
    palette: tuple[str, str, str]
    layout: str
    emblem: str
    lettering: Lettering
    high_brand: bool
    badge: bool
    height: float
    depth: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Package:
        form = pick(rng, tuple(GOODS))
        low, high = {"bottle": (2.0, 2.7), "can": (1.0, 1.7), "jar": (1.1, 1.5)}.get(
            form, (1.1, 1.7)
        )
        return cls(
            form=form,
            goods=pick(rng, GOODS[form]),
            brand=invented(rng),
            palette=pick(rng, PALETTES),
            layout=pick(rng, LAYOUTS),
            emblem=pick(rng, tuple(EMBLEMS)),
            lettering=Lettering.sample(rng),
            high_brand=bool(rng.random() < 0.6),
            badge=bool(rng.random() < 0.35),
            height=float(rng.uniform(low, high)),
            depth=float(rng.uniform(0.3, 0.6)),
        )

    @property
    def name(self) -> str:
        return f"{self.brand.lower()}-{self.goods}-{self.form}"

    @property
    def phrase(self) -> str:
        main, second, _ = self.palette
        label = f"{self.layout} label with {a(self.emblem)}"
        return (
            f"{a(main)} and {second} {self.form} of {self.brand.capitalize()} {self.goods}, "
            f"{a(label)}"
        )

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng, (1.0, 0.75, 0.8, 0.67, 1.0, 1.25))
        scene = room(rng, size, (0.3, 0.55), COUNTERS)
        if self.form in VESSELS:
            layer, shadow = self._vessel(rng, size)
        elif self.form == "pouch":
            layer, shadow = self._pouch(rng, size)
        else:
            layer, shadow = self._box(rng, size)
        return develop(rng, scene, layer.image, shadow=shadow.image)

    def _label(self, pen: Pen) -> None:
        """The label over the unit square."""
        main, second, accent = self.palette
        _LAYOUTS[self.layout](pen, self.palette)
        ground, ink = _ground_and_ink(self.layout, self.palette)
        high, low = ((0.08, 0.3), (0.42, 0.78)) if self.high_brand else ((0.62, 0.84), (0.14, 0.52))
        self.lettering.write(pen, self.brand, (0.1, high[0], 0.9, high[1]), ink[0])
        span = (low[1] - low[0]) / 2
        emblem(pen.on(rect(0.5 - span, low[0], 0.5 + span, low[1])), self.emblem, ink[1], ground)
        pen.text(self.goods.upper(), (0.25, 0.86, 0.75, 0.95), ink[0], weight=1, spacing=4)
        if self.badge:
            pen.fill(star(0.83, 0.36, 0.13, tips=10, inner=0.8), accent)
            pen.fill(ellipse(0.83, 0.36, 0.07, steps=12), "white")
        del main, second

    def _box(self, rng: np.random.Generator, size: tuple[int, int]) -> tuple[Pen, Pen]:
        camera = Camera(float(rng.uniform(-38, 38)), float(rng.uniform(8, 30)))
        w, h, d = 0.5, self.height, self.depth * (0.9 if self.form == "box" else 1.3)
        body = box((-w, 0, -d / 2), (w, h, d / 2), self.palette[0])
        solids = [body]
        if self.form == "carton":
            solids.append(_gable(w, h, d, self.palette[1]))
        pen, shadow = _stand(rng, size, solids, camera)
        for solid in solids:
            for face in solid.faces:
                self._panel(pen, face, camera, solid is body)
        return pen, shadow

    def _panel(self, pen: Pen, face: Face, camera: Camera, printed: bool) -> None:
        flat = camera.project(face.points)
        following = np.roll(flat, -1, axis=0)
        if np.sum(flat[:, 0] * following[:, 1] - following[:, 0] * flat[:, 1]) >= 0:
            return
        gain = float(brightness(*face.points[:3]))
        normal = np.cross(face.points[1] - face.points[0], face.points[2] - face.points[1])
        pen.fill(flat, lit(face.colour, gain))
        if not printed or len(flat) != 4 or abs(normal[1]) > 1e-6:
            return
        panel = pen.on(flat[[3, 2, 1, 0]])
        if abs(normal[2]) > 1e-6:
            with panel.inside(rect(0, 0, 1, 1)) as front:
                front.fill(rect(0, 0, 1, 1), self.palette[0])
                self._label(front)
        else:
            panel.text(self.brand, (0.14, 0.06, 0.86, 0.22), self.palette[1], weight=1)
            for y in np.linspace(0.4, 0.8, 6):
                panel.fill(rect(0.16, y, 0.84, y + 0.025), self.palette[1])
        pen.fill(flat, (20, 16, 36), alpha=max(0.0, 1 - gain))

    def _vessel(self, rng: np.random.Generator, size: tuple[int, int]) -> tuple[Pen, Pen]:
        profile, (top, bottom) = VESSELS[self.form]
        main, second, accent = self.palette
        h, sag = self.height, float(rng.uniform(0.04, 0.16))
        matrix = placed(rng, (-0.5, -sag / 2, 0.5, h + sag / 2), size, _STANDING)
        pen, shadow = blank(size, matrix), blank(size, matrix)
        shadow.fill(ellipse(0.12, h, 0.6, max(sag, 0.09)), "black")
        right = np.array([(r, y * h + sag * r * (2 * y - 1) * 0.0) for r, y in profile])
        r_top, r_low = profile[0][0], profile[-1][0]
        side = np.concatenate(
            [
                right,
                arc(0, h, r_low, sag * r_low, 0, 180, 14),
                (right * (-1, 1))[::-1],
                arc(0, 0, r_top, sag * r_top, 180, 360, 14),
            ]
        )
        glass = {"bottle": lit(main, 0.8), "jar": lit(accent, 0.95), "can": main}[self.form]
        pen.fill(side, glass)
        self._wrap(pen, rng, (top * h, bottom * h), sag)
        lid = second if self.form != "can" else "grey"
        cap = {"bottle": 0.16, "jar": 0.15, "can": 0.035}[self.form] * h
        wide = profile[0][0] + 0.03
        pen.fill(
            np.concatenate(
                [arc(0, 0, wide, sag * wide, 180, 360), arc(0, cap, wide, sag * wide, 0, 180)]
            ),
            lit(lid, 0.9),
        )
        pen.fade(side, (14, 12, 34), ROUND)
        pen.fade(side, "white", GLEAM, 0.3)
        pen.fill(ellipse(0, 0, wide, sag * wide), lit(lid, 1.12))
        pen.fill(ellipse(0, 0, wide * 0.86, sag * wide * 0.86), lit(lid, 1.0))
        return pen, shadow

    def _wrap(
        self, pen: Pen, rng: np.random.Generator, span: tuple[float, float], sag: float
    ) -> None:
        """The label around the front of the vessel, turned by a view's yaw."""
        yaw, outer = np.radians(float(rng.uniform(-38, 38))), pen.warp
        top, bottom = span

        def cylinder(points: np.ndarray) -> np.ndarray:
            angle = np.clip((points[:, 0] - 0.5) * np.radians(150) + yaw, -np.pi / 2, np.pi / 2)
            x, y = 0.5 * np.sin(angle), top + (bottom - top) * points[:, 1]
            return outer(np.stack([x, y + 0.5 * sag * np.cos(angle)], axis=1))

        wrap = Pen(pen.image, cylinder, curved=True)
        sheet = rect(-0.9, 0, 1.9, 1)
        with wrap.inside(
            np.column_stack(
                [
                    np.append(np.linspace(-0.9, 1.9, 30), np.linspace(1.9, -0.9, 30)),
                    np.repeat([0.0, 1.0], 30),
                ]
            )
        ) as label:
            label.fill(sheet, self.palette[0])
            self._label(label)

    def _pouch(self, rng: np.random.Generator, size: tuple[int, int]) -> tuple[Pen, Pen]:
        h = self.height
        pose = Pose(scale=(0.8, 1.0), turn_deg=8, tilt=0.12, shift=0.08, ground=(0.84, 0.98))
        matrix = placed(rng, (-0.55, -0.02, 0.55, h + 0.05), size, pose)
        pen, shadow = blank(size, matrix), blank(size, matrix)
        shadow.fill(ellipse(0.1, h, 0.6, 0.1), "black")
        half = [
            (0.46, 0.0),
            (0.44, 0.12),
            (0.5, 0.4 * h),
            (0.52, 0.8 * h),
            (0.47, h),
            (0.0, h + 0.05),
        ]
        outline = np.concatenate([mirrored(half, axis=0.0)])
        with pen.inside(outline) as bag:
            bag.fill(outline, self.palette[0])
            self._label(bag.on(rect(-0.48, 0.14, 0.48, h)))
        pen.fill(rect(-0.46, 0.0, 0.46, 0.09), lit(self.palette[1], 0.95))
        for x in np.linspace(-0.44, 0.44, 16):
            pen.line([(x, 0.0), (x, 0.09)], lit(self.palette[1], 0.8), 0.01)
        pen.fade(outline, (14, 12, 34), ROUND, 0.8)
        pen.fade(outline, "white", GLEAM, 0.22)
        return pen, shadow


_STANDING = Pose(scale=(0.8, 1.0), turn_deg=5, tilt=0.03, shift=0.08, ground=(0.86, 0.98))


def _stand(rng, size, solids: list[Solid], camera: Camera) -> tuple[Pen, Pen]:
    """Pens for the solids and their shadow, the solids standing in the lower frame."""
    matrix = placed(rng, bounds(solids, camera), size, Pose(**{**vars(_STANDING), "tilt": 0.0}))
    pen, shadow = blank(size, matrix), blank(size, matrix)
    cast_shadow(shadow, solids, camera)
    return pen, shadow


def _gable(w: float, h: float, d: float, colour: str) -> Solid:
    """A roof whose ridge runs from left to right."""
    ridge, z = h + 0.34, d / 2
    a0, b0, c0, d0 = (-w, h, z), (w, h, z), (w, h, -z), (-w, h, -z)
    e, f = (-w, ridge, 0.0), (w, ridge, 0.0)
    faces = ((a0, b0, f, e), (c0, d0, e, f), (b0, c0, f), (d0, a0, e))
    return Solid([Face(np.array(points), colour) for points in faces])


def _ground_and_ink(layout: str, palette: tuple[str, str, str]) -> tuple[str, tuple[str, str]]:
    """The colour behind the emblem, and the inks of the words and of the emblem."""
    main, second, accent = palette
    return (
        (main, (second, second))
        if layout in ("framed", "dotted", "striped")
        else (second, (main, accent))
    )


def _banded(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.fill(rect(0, 0.05, 1, 0.98), palette[1])
    pen.fill(rect(0, 0.33, 1, 0.38), palette[2])


def _round(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.fill(ellipse(0.5, 0.5, 0.56, 0.49), palette[2])
    pen.fill(ellipse(0.5, 0.5, 0.52, 0.46), palette[1])


def _diagonal(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.fill(np.array([(0, 0.2), (1, -0.1), (1, 0.86), (0, 1.1)]), palette[1])
    pen.fill(np.array([(0, 0.12), (1, -0.18), (1, -0.1), (0, 0.2)]), palette[2])


def _arched(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.fill(
        np.concatenate([arc(0.5, 0.5, 0.46, 0.47, 180, 360), [(0.96, 1.0), (0.04, 1.0)]]),
        palette[2],
    )
    pen.fill(
        np.concatenate([arc(0.5, 0.5, 0.41, 0.43, 180, 360), [(0.91, 1.0), (0.09, 1.0)]]),
        palette[1],
    )


def _wavy(pen: Pen, palette: tuple[str, str, str]) -> None:
    xs = np.linspace(0, 1, 24)
    for y, colour in ((0.0, palette[2]), (0.06, palette[1])):
        crest = np.stack([xs, y + 0.04 * np.sin(xs * 4 * np.pi)], axis=1)
        pen.fill(np.concatenate([crest, [(1, 1), (0, 1)]]), colour)
    low = np.stack([xs, 0.965 + 0.02 * np.sin(xs * 4 * np.pi)], axis=1)
    pen.fill(np.concatenate([low, [(1, 1.01), (0, 1.01)]]), palette[2])


def _rayed(pen: Pen, palette: tuple[str, str, str]) -> None:
    for i in range(12):
        pen.fill(
            np.array([(0.5, 0.5), *arc(0.5, 0.5, 1.2, 1.2, 30 * i, 30 * i + 15, 2)]), palette[2]
        )
    pen.fill(ellipse(0.5, 0.5, 0.47, 0.48), palette[1])


def _framed(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.line(rect(0.06, 0.04, 0.94, 0.98), palette[2], 0.05, closed=True)


def _split(pen: Pen, palette: tuple[str, str, str]) -> None:
    pen.fill(rect(0.0, 0, 1, 1), palette[1])
    pen.fill(rect(0.0, 0, 0.09, 1), palette[2])
    pen.fill(rect(0.91, 0, 1, 1), palette[2])


_LAYOUTS = {
    "banded": _banded, "round": _round, "diagonal": _diagonal, "arched": _arched, "wavy": _wavy,
    "rayed": _rayed, "framed": _framed, "split": _split,
    "striped": lambda pen, p: pattern(pen, "pinstriped", 5, lit(p[0], 1.25), p[2]),
    "dotted": lambda pen, p: pattern(pen, "dotted", 7, lit(p[0], 1.25), p[2]),
}  # fmt: skip
