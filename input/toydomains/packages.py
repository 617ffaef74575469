"""Packaged goods: boxes, cans, bottles, jars, cartons, pouches. The label makes the class."""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from PIL import Image

from toydomains.kit.colour import PALETTES, lit, mix
from toydomains.kit.ornament import EMBLEMS, emblem, pattern
from toydomains.kit.outline import Points, arc, ellipse, mirrored, rect, star
from toydomains.kit.pen import GLEAM, ROUND, Colour, Pen
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed, stage
from toydomains.kit.scene import Size, counter
from toydomains.kit.solid import Camera, Face, Solid, box
from toydomains.kit.subject import Lettering, Subject, a, chance, drawn, invented, one_of, real

GOODS = {
    "box": ("tea", "oats", "soap", "rice", "pasta", "cocoa"),
    "carton": ("milk", "juice", "soup", "cream"),
    "can": ("soup", "beans", "cocoa", "nuts", "soda"),
    "bottle": ("juice", "oil", "soap", "syrup"),
    "jar": ("jam", "honey", "nuts", "olives"),
    "pouch": ("coffee", "rice", "nuts", "flour"),
}
SECOND, ACCENT = 1, 2  # positions in a palette


def _wave(y: float, swing: float, foot: float) -> Points:
    """Return everything from a wavy line at `y` down to `foot`."""
    xs = np.linspace(0, 1, 24)
    crest = np.stack([xs, y + swing * np.sin(xs * 4 * np.pi)], axis=1)
    return np.concatenate([crest, [(1, foot), (0, foot)]])


def _arch(r: float) -> Points:
    """Return a door with a round top, `r` to the left and to the right of the middle."""
    return np.concatenate([arc(0.5, 0.5, r, r + 0.01, 180, 360), [(0.5 + r, 1), (0.5 - r, 1)]])


# The shapes behind the print and their colours; three layouts are drawn by `label` alone.
GROUNDS: dict[str, list[tuple[Points, int]]] = {
    "banded": [(rect(0, 0.05, 1, 0.98), SECOND), (rect(0, 0.33, 1, 0.38), ACCENT)],
    "round": [(ellipse(0.5, 0.5, 0.56, 0.49), ACCENT), (ellipse(0.5, 0.5, 0.52, 0.46), SECOND)],
    "diagonal": [
        (np.array([(0, 0.2), (1, -0.1), (1, 0.86), (0, 1.1)]), SECOND),
        (np.array([(0, 0.12), (1, -0.18), (1, -0.1), (0, 0.2)]), ACCENT),
    ],
    "arched": [(_arch(0.46), ACCENT), (_arch(0.41), SECOND)],
    "wavy": [
        (_wave(0.0, 0.04, 1), ACCENT),
        (_wave(0.06, 0.04, 1), SECOND),
        (_wave(0.965, 0.02, 1.01), ACCENT),
    ],
    "rayed": [
        *(
            (np.array([(0.5, 0.5), *arc(0.5, 0.5, 1.2, 1.2, 30 * i, 30 * i + 15, 2)]), ACCENT)
            for i in range(12)
        ),
        (ellipse(0.5, 0.5, 0.47, 0.48), SECOND),
    ],
    "framed": [],
    "split": [
        (rect(0, 0, 1, 1), SECOND),
        (rect(0, 0, 0.09, 1), ACCENT),
        (rect(0.91, 0, 1, 1), ACCENT),
    ],
    "striped": [],
    "dotted": [],
}
LAYOUTS = tuple(GROUNDS)
HEIGHTS = {"bottle": (2.0, 2.7), "can": (1.0, 1.7), "jar": (1.1, 1.5)}  # over the width


@dataclass(frozen=True)
class Package(Subject):
    """A product; the height is a multiple of the width."""

    kin = ("form", "goods", "palette", "layout")
    title = "{0.brand}-{0.goods}-{0.form}"

    form: str = one_of(tuple(GOODS))
    goods: str = one_of(lambda p: GOODS[p.form])
    brand: str = invented()
    palette: tuple[str, str, str] = one_of(PALETTES)
    layout: str = one_of(LAYOUTS)
    emblem: str = one_of(tuple(EMBLEMS))
    lettering: Lettering = drawn(lambda rng, _: Lettering.sample(rng))
    high_brand: bool = chance(0.6)
    badge: bool = chance(0.35)
    height: float = drawn(lambda rng, p: float(rng.uniform(*HEIGHTS.get(p.form, (1.1, 1.7)))))
    depth: float = real(0.3, 0.6)

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
        scene = counter(rng, size)
        draw = {"box": carton, "carton": carton, "pouch": pouch}.get(self.form, vessel)
        layer, shadow = draw(self, rng, size)
        return develop(rng, scene, layer, shadow=shadow)


def label(p: Package, pen: Pen) -> None:
    """Draw the label of a package: brand, emblem, goods, and on some a badge."""
    main, second, accent = p.palette
    ground, ink = second, (main, accent)
    if p.layout in ("framed", "striped", "dotted"):  # print on the package's own colour
        ground, ink = main, (second, second)
    if p.layout == "framed":
        pen.line(rect(0.06, 0.04, 0.94, 0.98), accent, 0.05, closed=True)
    elif p.layout == "striped":
        pattern(pen, "pinstriped", 5, mix(main, second, 0.3), accent)
    elif p.layout == "dotted":
        pattern(pen, "dotted", 7, mix(main, second, 0.3), accent)
    for outline, colour in GROUNDS[p.layout]:
        pen.fill(outline, p.palette[colour])
    high, low = ((0.08, 0.3), (0.42, 0.78)) if p.high_brand else ((0.62, 0.84), (0.14, 0.52))
    p.lettering.write(pen, p.brand, (0.1, high[0], 0.9, high[1]), ink[0])
    span = (low[1] - low[0]) / 2
    emblem(pen.on(rect(0.5 - span, low[0], 0.5 + span, low[1])), p.emblem, ink[1], ground)
    pen.text(p.goods.upper(), (0.25, 0.86, 0.75, 0.95), ink[0], weight=1, spacing=4)
    if p.badge:
        pen.fill(star(0.83, 0.36, 0.13, tips=10, inner=0.8), p.palette[2])
        pen.fill(ellipse(0.83, 0.36, 0.07, steps=12), "white")


Layers: TypeAlias = tuple[Image.Image, Image.Image]

UPRIGHT = Pose(scale=(0.8, 1.0), turn_deg=5, tilt=0.03, shift=0.08, ground=(0.86, 0.98))
NIGHT = (14, 12, 34)  # the colour of shade
# Half outlines of round vessels: (radius, fraction of the height from the top).
VESSELS = {
    "can": [(0.46, 0.0), (0.5, 0.03), (0.5, 0.97), (0.46, 1.0)],
    "bottle": [(0.17, 0.0), (0.17, 0.2), (0.24, 0.28), (0.46, 0.42), (0.5, 0.5), (0.5, 0.96),
               (0.46, 1.0)],
    "jar": [(0.42, 0.0), (0.43, 0.16), (0.5, 0.24), (0.5, 0.93), (0.43, 1.0)],
}  # fmt: skip
LABEL_SPANS = {"can": (0.07, 0.93), "bottle": (0.5, 0.9), "jar": (0.32, 0.84)}
CAPS = {"bottle": 0.16, "jar": 0.15, "can": 0.035}  # heights, as fractions of the whole


def carton(p: Package, rng: np.random.Generator, size: Size) -> Layers:
    """Draw a box; a carton has a gable as well, whose ridge runs from left to right."""
    main, second, _ = p.palette
    camera = Camera(rng.uniform(-38, 38), rng.uniform(8, 30))
    w, h, z = 0.5, p.height, p.depth * (0.9 if p.form == "box" else 1.3) / 2
    body = box((-w, 0, -z), (w, h, z), main)
    solids = [body]
    if p.form == "carton":
        a0, b0, c0, d0 = (-w, h, z), (w, h, z), (w, h, -z), (-w, h, -z)
        e, f = (-w, h + 0.34, 0.0), (w, h + 0.34, 0.0)
        faces = ((a0, b0, f, e), (c0, d0, e, f), (b0, c0, f), (d0, a0, e))
        solids.append(Solid([Face(np.array(points), second) for points in faces]))
    pen, shadow = stage(rng, size, solids, camera, replace(UPRIGHT, tilt=0.0), lean=0.45)
    # Pens over the unit squares of the three sides.
    front, right, _, left = (
        pen.on(camera.project(face.points)[[3, 2, 1, 0]]) for face in body.faces[:4]
    )
    with front.inside(rect(0, 0, 1, 1)) as panel:
        panel.fill(rect(0, 0, 1, 1), main)
        label(p, panel)
    ink = lit(second, 0.8)  # small print, in the side's shade
    for side, near in ((right, camera.position[0] > w), (left, camera.position[0] < -w)):
        if near:
            side.text(p.brand, (0.14, 0.06, 0.86, 0.22), ink, weight=1)
            for y in np.linspace(0.4, 0.8, 6):
                side.fill(rect(0.16, y, 0.84, y + 0.025), ink)
    return pen.image, shadow


def vessel(p: Package, rng: np.random.Generator, size: Size) -> Layers:
    """Draw a can, bottle or jar, seen a little from above: circles sag by `sag` of their radius."""
    main, second, accent = p.palette
    h, sag = p.height, rng.uniform(0.04, 0.16)
    matrix = placed(rng, (-0.5, -sag / 2, 0.5, h + sag / 2), size, UPRIGHT)
    pen, shadow = blank(size, matrix), blank(size, matrix)
    shadow.fill(ellipse(0.12, h, 0.6, max(sag, 0.09)), "black")
    side = _silhouette(np.array(VESSELS[p.form]) * (1, h), sag)
    glass: dict[str, Colour] = {"bottle": lit(main, 0.8), "jar": lit(accent, 0.95), "can": main}
    pen.fill(side, glass[p.form])
    # The label covers 124 degrees around the front, turned by some.
    outer, yaw_deg = pen.warp, rng.uniform(-32, 32)
    top, bottom = np.array(LABEL_SPANS[p.form]) * h

    def cylinder(points: Points) -> Points:
        angle = np.radians(np.clip((points[:, 0] - 0.5) * 124 + yaw_deg, -90, 90))
        y = top + (bottom - top) * points[:, 1]
        return outer(np.stack([0.5 * np.sin(angle), y + 0.5 * sag * np.cos(angle)], axis=1))

    # Many points along the two edges, so that they bend.
    across = np.linspace(-1.2, 2.2, 40)
    edges = [np.column_stack([u, np.full(40, v)]) for u, v in ((across, 0.0), (across[::-1], 1.0))]
    with Pen(pen.image, cylinder, curved=True).inside(np.concatenate(edges)) as paper:
        paper.fill(rect(-1.2, 0, 2.2, 1), main)
        label(p, paper)
    wide, lid = VESSELS[p.form][0][0] + 0.03, "grey" if p.form == "can" else second
    pen.fill(_silhouette(np.array([(wide, 0.0), (wide, CAPS[p.form] * h)]), sag), lit(lid, 0.9))
    pen.fade(side, NIGHT, ROUND)
    pen.fade(side, "white", GLEAM, 0.3)
    for share, gain in ((1.0, 1.12), (0.86, 1.0)):
        pen.fill(ellipse(0, 0, share * wide, share * sag * wide), lit(lid, gain))
    return pen.image, shadow.image


def _silhouette(right: Points, sag: float) -> Points:
    """Return a turned body's outline from its right flank [N, 2], top to bottom."""
    (top, y_top), (foot, y_foot) = right[0], right[-1]
    below, above = arc(0, y_foot, foot, sag * foot, 0, 180), arc(0, y_top, top, sag * top, 180, 360)
    return np.concatenate([right, below, (right * (-1, 1))[::-1], above])


def pouch(p: Package, rng: np.random.Generator, size: Size) -> Layers:
    """Draw a soft bag with a crimped top."""
    h, second = p.height, p.palette[1]
    pose = replace(UPRIGHT, turn_deg=8, tilt=0.12)
    matrix = placed(rng, (-0.55, -0.02, 0.55, h + 0.05), size, pose)
    pen, shadow = blank(size, matrix), blank(size, matrix)
    shadow.fill(ellipse(0.1, h, 0.6, 0.1), "black")
    flank = [(0.46, 0.0), (0.44, 0.12), (0.5, 0.4 * h), (0.52, 0.8 * h), (0.47, h), (0.0, h + 0.05)]
    outline = mirrored(flank, axis=0.0)
    with pen.inside(outline) as bag:
        bag.fill(outline, p.palette[0])
        label(p, bag.on(rect(-0.48, 0.14, 0.48, h)))
    pen.fill(rect(-0.46, 0.0, 0.46, 0.09), lit(second, 0.95))
    for x in np.linspace(-0.44, 0.44, 16):
        pen.line([(x, 0.0), (x, 0.09)], lit(second, 0.8), 0.01)
    pen.fade(outline, NIGHT, ROUND, 0.8)
    pen.fade(outline, "white", GLEAM, 0.22)
    return pen.image, shadow.image
