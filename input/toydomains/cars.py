"""Cars on the road: a few convex bodies, four wheels, and the details that distinguish models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from toydomains.kit.colour import lit
from toydomains.kit.outline import Points, arc, around, ellipse, rect, star
from toydomains.kit.pen import Colour, pick
from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import outdoors
from toydomains.kit.solid import Camera, Face, Solid, Solids, box, extruded, sheet
from toydomains.kit.subject import Subject, a, chance, drawn, listed, one_of, real

# length, height of the belt and of the roof, then the cabin: rear and front foot, rear and front top
BODIES = {
    "hatchback": (1.9, 0.62, 1.02, -0.92, 0.42, -0.72, 0.08),
    "sedan": (2.25, 0.62, 1.0, -0.72, 0.48, -0.42, 0.12),
    "coupe": (2.15, 0.56, 0.88, -0.85, 0.42, -0.28, 0.02),
    "estate": (2.3, 0.62, 1.02, -1.12, 0.48, -1.0, 0.14),
    "off-roader": (2.05, 0.78, 1.28, -0.98, 0.36, -0.9, 0.2),
    "pickup": (2.4, 0.7, 1.18, -0.22, 0.52, -0.12, 0.24),
    "van": (2.25, 0.7, 1.5, -1.1, 0.9, -1.06, 0.62),
    "city car": (1.5, 0.64, 1.12, -0.68, 0.52, -0.5, 0.2),
}
PAINTS = ("red", "navy", "white", "mustard", "teal", "grey", "light blue", "rust", "cream",
          "dark green", "black", "mint")  # fmt: skip
STRIPES = ("", "", "side stripe", "racing stripes", "number roundel", "two-tone doors")
WHEELS = ("spoked", "disc", "star", "cross", "holed")
ROOFS = ("white", "black", "cream", "charcoal")
ACCENTS = ("white", "black", "orange", "yellow")
LAMPS = ("round", "square", "slim")


@dataclass(frozen=True)
class Car(Subject):
    """A model of car; lengths in metres at half scale."""

    kin = ("body", "paint", "roof", "accent")
    title = "{0.paint}-{0.body}"

    body: str = one_of(tuple(BODIES))
    paint: str = one_of(PAINTS)
    roof: str = drawn(lambda rng, car: car.paint if rng.random() < 0.6 else pick(rng, ROOFS))
    accent: str = one_of(lambda car: ("red", "navy") if car.paint == "white" else ACCENTS)
    stripe: str = one_of(STRIPES)
    number: int = one_of(range(1, 100))
    wheel: str = one_of(WHEELS)
    spokes: int = one_of(range(4, 10))
    lamps: str = one_of(LAMPS)
    grille: int = one_of(range(6))
    doors: int = one_of(lambda car: (2,) if car.body in ("coupe", "city car", "pickup") else (2, 4))
    rack: bool = drawn(lambda rng, car: rng.random() < 0.35 and car.body not in ("coupe", "pickup"))
    spoiler: bool = chance(0.3)
    stretch: float = real(0.94, 1.08)
    lift: float = real(-0.03, 0.06)
    rake: float = real(-0.08, 0.08)

    @property
    def phrase(self) -> str:
        extras = [f"{self.wheel} wheels", f"{self.lamps} headlights"]
        if self.stripe:
            stripe = f"{self.accent} {self.stripe}"
            extras.append(stripe if stripe.endswith("s") else a(stripe))
        extras += [a(f"{self.roof} roof")] * (self.roof != self.paint) + ["a roof rack"] * self.rack
        return f"{a(self.paint)} {self.body} with {listed(*extras)}"

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng, (1.33, 1.5, 1.25, 1.0, 1.4, 0.9))
        scene = outdoors(rng, size, (0.5, 0.66), ("asphalt", "paving", "sand", "grass", "snow"))
        camera = Camera(rng.uniform(-52, 52), rng.uniform(4, 16), 6.0)
        pose = Pose(scale=(0.82, 1.06), turn_deg=3, tilt=0.0, shift=0.07, ground=(0.78, 0.96))
        return portrait(rng, scene, built(self), camera, pose, lean=0.2)


GLASS, REFLECTION, TYRE, METAL, DARK = (
    (70, 92, 112), (128, 156, 172), (42, 42, 48), (206, 208, 212), (66, 68, 76),
)  # fmt: skip
WIDE = 0.42  # half the width


class Chassis(NamedTuple):
    """A car's measures: half its length, heights of sill, belt and roof, cabin, wheel radius."""

    half: float
    low: float
    belt: float
    roof: float
    cabin: list[float]
    radius: float
    nose: float  # height of the belt above the bonnet's tip

    @classmethod
    def of(cls, car: Car) -> Chassis:
        """Return the measures of a model."""
        length, belt, roof, *cabin = BODIES[car.body]
        return cls(
            half=length / 2 * car.stretch,
            low=0.17 + car.lift,
            belt=belt + car.lift,
            roof=roof + car.lift + car.rake,
            cabin=[x * car.stretch for x in cabin],
            radius=0.26 if car.body == "off-roader" else 0.2,
            nose=0.02 if car.body == "van" else 0.12,
        )


def built(car: Car) -> Solids:
    """Yield the solids of the whole car."""
    c = Chassis.of(car)
    yield _hull(car, c)
    # Invisible sheets just off the hull carry the doors, stripes and wheel arches.
    far, near = sheet((-c.half, c.low, -WIDE - 0.002), (c.half, c.belt, WIDE + 0.002))
    for outline, colour in _flank_decals(car, c):
        near.decal(outline, colour)
        far.decal(outline * (-1, 1) + (1, 0), colour)
    yield Solid([far])
    yield Solid([near])
    yield from _ends(car, c)
    yield _cabin(car, c)
    for x, side in product((-0.6 * c.half, 0.62 * c.half), (-1, 1)):
        yield from _wheel(car, c.radius, x, side)
    yield from _extras(car, c)


def _hull(car: Car, c: Chassis) -> Solid:
    """The lower body, with racing stripes over the bonnet and the boot."""
    tip = c.belt - c.nose
    profile = np.array(
        [(-c.half, c.low), (c.half, c.low), (c.half + 0.02, tip - 0.1), (c.half - 0.06, tip),
         (c.cabin[1], c.belt), (-c.half + 0.05, c.belt), (-c.half - 0.03, c.belt - 0.14)]
    )  # fmt: skip
    hull = extruded(profile, -WIDE, WIDE, car.paint)
    for face, u in product(hull.faces[2:], (0.36, 0.54)) if car.stripe == "racing stripes" else ():
        face.decal(rect(u, 0, u + 0.1, 1), car.accent)
    return hull


def _flank_decals(car: Car, c: Chassis) -> Iterator[tuple[Points, Colour]]:
    """Outlines and colours on the right flank's unit square, the front at u = 1."""
    tall, long, seam = c.belt - c.low, 2 * c.half, lit(car.paint, 0.6)
    if car.stripe == "side stripe":
        yield rect(0.02, 0.4, 0.98, 0.52), car.accent
    if car.stripe == "two-tone doors":
        yield rect(0.3, 0.1, 0.68, 0.96), car.accent
    yield rect(0.01, 0.9, 0.99, 1.0), lit(car.paint, 0.55)
    for i in range(car.doors // 2 + 1):
        x = 0.7 - 0.4 * i / (car.doors // 2)
        yield rect(x, 0.06, x + 0.006, 0.9), seam
        if i:
            yield rect(x + 0.02, 0.2, x + 0.065, 0.26), lit(car.paint, 0.5)
    if car.stripe == "number roundel":
        yield ellipse(0.5, 0.48, 0.2 / long, 0.2 / tall), car.accent
        for i in range(1 + car.number % 4):
            yield rect(0.45 + 0.03 * i, 0.3, 0.465 + 0.03 * i, 0.64), car.paint
    for x in (0.2, 0.81):
        yield arc(x, 1.02, (c.radius + 0.05) / long, (c.radius + 0.09) / tall, 180, 360), TYRE


def _ends(car: Car, c: Chassis) -> Solids:
    """Invisible upright sheets at front and rear, with lamps, bumpers, plates and the grille."""
    front, rear = (
        Face(np.array([(x, c.low, z), (x, c.low, -z), (x, top, -z), (x, top, z)]), None)
        for x, top, z in (
            (c.half + 0.025, c.belt - c.nose, WIDE),
            (-c.half - 0.035, c.belt - 0.02, -WIDE),
        )
    )
    front.decal(rect(0.0, 0.72, 1.0, 0.98), lit(car.roof, 0.7))
    front.decal(rect(0.36, 0.76, 0.64, 0.92), "white")
    for i in range(car.grille):
        y = 0.3 + 0.36 * i / car.grille
        front.decal(rect(0.3, y, 0.7, y + 0.22 / car.grille), TYRE)
    for u in (0.15, 0.85):
        lamp = {
            "round": ellipse(u, 0.42, 0.1, 0.2, 16),
            "square": rect(u - 0.11, 0.26, u + 0.11, 0.58),
            "slim": rect(u - 0.14, 0.3, u + 0.14, 0.44),
        }[car.lamps]
        front.decal(lamp, (255, 244, 205))
    rear.decal(rect(0.0, 0.78, 1.0, 0.98), lit(car.roof, 0.7))
    rear.decal(rect(0.36, 0.5, 0.64, 0.66), "white")
    for u in (0.1, 0.9):
        square = rect(u - 0.08, 0.3, u + 0.08, 0.5)
        rear.decal(ellipse(u, 0.4, 0.07, 0.13, 14) if car.lamps == "round" else square, "red")
    yield Solid([front])
    yield Solid([rear])


def _cabin(car: Car, c: Chassis) -> Solid:
    """A tapered box with glass all round."""
    (rear, front, rear_top, front_top), z, t = c.cabin, WIDE - 0.02, WIDE - 0.1
    lower = [(rear, z), (front, z), (front, -z), (rear, -z)]
    upper = [(rear_top, t), (front_top, t), (front_top, -t), (rear_top, -t)]
    corners = np.array([(x, c.belt, z) for x, z in lower] + [(x, c.roof, z) for x, z in upper])
    order = ((0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7), (4, 5, 6, 7))
    faces = [Face(corners[list(ids)], car.roof) for ids in order]
    panes = 1 + car.doors // 2
    for i in range(1 if car.body == "van" else 0, panes):
        pane = rect(i / panes + 0.025, 0.16, (i + 1) / panes - 0.025, 0.9)
        faces[0].decal(pane, GLASS)
        faces[2].decal(pane * (-1, 1) + (1, 0), GLASS)
    for face in (faces[1], faces[3]):
        face.decal(rect(0.08, 0.12, 0.92, 0.92), GLASS)
        face.decal([(0.2, 0.12), (0.4, 0.12), (0.25, 0.92), (0.08, 0.92)], REFLECTION)
    return Solid(faces)


def _wheel(car: Car, r: float, x: float, side: int) -> Solids:
    """A tyre outside the hull, its inner half under the hull, and a sheet with the rim."""
    z0, z1 = sorted((side * (WIDE + 0.003), side * (WIDE + 0.035)))
    yield extruded(ellipse(x, r, r, steps=21)[:-1], z0, z1, TYRE)
    inner0, inner1 = sorted((side * (WIDE - 0.15), side * (WIDE - 0.01)))
    yield box((x - 0.8 * r, 0, inner0), (x + 0.8 * r, 0.15, inner1), TYRE)
    rim = sheet((x - r, 0, z0 - 0.001), (x + r, 2 * r, z1 + 0.001))[side > 0]
    rim.decal(ellipse(0.5, 0.5, 0.33), METAL if car.wheel in ("disc", "holed") else DARK)
    if car.wheel == "star":
        rim.decal(star(0.5, 0.5, 0.33, tips=5, inner=0.4), METAL)
    # What is repeated around the hub, how often, and its colour.
    holes = car.spokes if car.wheel == "holed" else 0
    shape, number, colour = {
        "spoked": (rect(0.47, 0.18, 0.53, 0.5), car.spokes, METAL),
        "cross": (rect(0.43, 0.18, 0.57, 0.5), 4, METAL),
    }.get(car.wheel, (ellipse(0.5, 0.27, 0.045, steps=8), holes, DARK))
    for copy in around(shape, number, (0.5, 0.5), start=0.5):
        rim.decal(copy, colour)
    rim.decal(ellipse(0.5, 0.5, 0.09, steps=12), car.accent if car.wheel == "disc" else DARK)
    yield Solid([rim])


def _extras(car: Car, c: Chassis) -> Solids:
    """Yield a roof rack with luggage, a spoiler, and the load bed of a pickup as a dark floor."""
    if car.rack:
        rear, front, t = c.cabin[2], c.cabin[3], WIDE - 0.1
        for z in (-t, t):
            low, high = (rear, c.roof + 0.03, z - 0.015), (front, c.roof + 0.06, z + 0.015)
            yield box(low, high, "charcoal")
        low, high = (rear + 0.1, c.roof + 0.06, -t + 0.05), (front - 0.1, c.roof + 0.2, t - 0.05)
        yield box(low, high, lit(car.accent, 0.9))
    if car.spoiler and car.body in ("coupe", "sedan"):
        x, y = -c.half, c.belt
        for z in (-0.25, 0.25):
            yield box((x + 0.05, y, z - 0.02), (x + 0.09, y + 0.09, z + 0.02), DARK)
        low, high = (x, y + 0.09, -WIDE + 0.04), (x + 0.14, y + 0.12, WIDE - 0.04)
        yield box(low, high, car.accent)
    if car.body == "pickup":
        end, z = c.cabin[0] - 0.06, WIDE - 0.06
        yield box((-c.half + 0.08, c.belt, -z), (end, c.belt + 0.008, z), DARK)
