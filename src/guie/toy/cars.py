"""Cars on the road: a few convex bodies, four wheels, and the details that tell models apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guie.toy.canvas import arc, ellipse, pick, rect, star, turned
from guie.toy.colour import lit
from guie.toy.photo import Pose, View, blank, develop, frame, placed
from guie.toy.scene import outdoors
from guie.toy.solid import Camera, Face, Solid, bounds, box, cast_shadow, extruded, paint, sheet
from guie.toy.subject import Subject, a

PAINTS = ("red", "navy", "white", "mustard", "teal", "grey", "light blue", "rust", "cream",
          "dark green", "black", "mint")  # fmt: skip
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
STRIPES = ("", "", "side stripe", "racing stripes", "number roundel", "two-tone doors")
WHEELS = ("spoked", "disc", "star", "cross", "holed")
LAMPS = ("round", "square", "slim")


@dataclass(frozen=True)
class Car(Subject):
    """A model of car; lengths in metres at half scale."""

    kin = ("body", "paint", "roof", "accent")

    body: str
    paint: str
    roof: str
    accent: str
    stripe: str
    number: int
    wheel: str
    spokes: int
    lamps: str
    grille: int
    doors: int
    rack: bool
    spoiler: bool
    stretch: float
    lift: float
    rake: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Car:
        body, paint_ = pick(rng, tuple(BODIES)), pick(rng, PAINTS)
        return cls(
            body=body,
            paint=paint_,
            roof=paint_
            if rng.random() < 0.6
            else pick(rng, ("white", "black", "cream", "charcoal")),
            accent=pick(
                rng,
                ("white", "black", "orange", "yellow") if paint_ != "white" else ("red", "navy"),
            ),
            stripe=pick(rng, STRIPES),
            number=int(rng.integers(1, 100)),
            wheel=pick(rng, WHEELS),
            spokes=int(rng.integers(4, 10)),
            lamps=pick(rng, LAMPS),
            grille=int(rng.integers(0, 6)),
            doors=2 if body in ("coupe", "city car", "pickup") else int(pick(rng, (2, 4))),
            rack=bool(rng.random() < 0.35) and body not in ("coupe", "pickup"),
            spoiler=bool(rng.random() < 0.3),
            stretch=float(rng.uniform(0.94, 1.08)),
            lift=float(rng.uniform(-0.03, 0.06)),
            rake=float(rng.uniform(-0.08, 0.08)),
        )

    @property
    def name(self) -> str:
        return f"{self.paint}-{self.body}".replace(" ", "-")

    @property
    def phrase(self) -> str:
        extras = [f"{self.wheel} wheels", f"{self.lamps} headlights"]
        extras += [
            f"{self.accent} {self.stripe}"
            if self.stripe.endswith("s")
            else a(f"{self.accent} {self.stripe}")
        ] * bool(self.stripe)
        extras += [a(f"{self.roof} roof")] * (self.roof != self.paint) + ["a roof rack"] * self.rack
        return f"{a(self.paint)} {self.body} with " + ", ".join(extras[:-1]) + f" and {extras[-1]}"

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng, (1.33, 1.5, 1.25, 1.0, 1.4, 0.9))
        scene = outdoors(
            rng, size, (0.5, 0.66), ("asphalt", "paving", "asphalt", "sand", "grass", "snow")
        )
        camera = Camera(float(rng.uniform(-52, 52)), float(rng.uniform(4, 16)), 6.0)
        solids = self._solids()
        pose = Pose(scale=(0.82, 1.06), turn_deg=3, tilt=0.0, shift=0.07, ground=(0.78, 0.96))
        matrix = placed(rng, bounds(solids, camera), size, pose)
        pen, shadow = blank(size, matrix), blank(size, matrix)
        cast_shadow(shadow, solids, camera, 0.2)
        paint(pen, solids, camera)
        return develop(rng, scene, pen.image, shadow=shadow.image, obstacles=0.35)

    def _solids(self) -> list[Solid]:
        length, belt, roof, *cabin = BODIES[self.body]
        half, wide = length / 2 * self.stretch, 0.42
        low, belt, roof = 0.17 + self.lift, belt + self.lift, roof + self.lift + self.rake
        radius = 0.2 if self.body != "off-roader" else 0.26
        nose = 0.12 if self.body != "van" else 0.02
        tail = 0.03
        profile = np.array(
            [(-half, low), (half, low), (half + 0.02, belt - nose - 0.1), (half - 0.06, belt - nose),
             (cabin[1] * self.stretch, belt), (-half + 0.05, belt), (-half - tail, belt - 0.14)]
        )  # fmt: skip
        body = extruded(profile, -wide, wide, self.paint)
        flanks = sheet((-half, low, -wide - 0.002), (half, belt, wide + 0.002))
        self._sides(flanks, half, low, belt, radius)
        axles = (-0.6 * half, 0.62 * half)
        solids = [body, *(Solid([flank]) for flank in flanks)]
        solids += [self._nose(half, low, belt - nose, wide), self._rear(half, low, belt, wide)]
        solids += self._cabin(np.array(cabin) * self.stretch, belt, roof, wide)
        for x in axles:
            solids += self._wheel(x, radius, wide)
        if self.stripe == "racing stripes":
            self._racing(body)
        return solids + self._extras(np.array(cabin) * self.stretch, half, belt, roof, wide)

    def _sides(
        self, flanks: tuple[Face, Face], half: float, low: float, belt: float, radius: float
    ) -> None:
        """Wheel arches, doors, handles and stripes, on both flanks."""
        tall, long = belt - low, 2 * half
        for face, flip in zip(flanks, (True, False), strict=True):
            place = (lambda p: p * (-1, 1) + (1, 0)) if flip else (lambda p: p)
            if self.stripe == "side stripe":
                face.decal(rect(0.02, 0.4, 0.98, 0.52), self.accent)
            if self.stripe == "two-tone doors":
                face.decal(place(rect(0.3, 0.1, 0.68, 0.96)), self.accent)
            face.decal(rect(0.01, 0.9, 0.99, 1.0), lit(self.paint, 0.55))
            for i in range(self.doors // 2 + 1):
                x = 0.7 - 0.4 * i / (self.doors // 2)
                face.decal(place(rect(x, 0.06, x + 0.006, 0.9)), lit(self.paint, 0.6))
                if i:
                    face.decal(place(rect(x + 0.02, 0.2, x + 0.065, 0.26)), lit(self.paint, 0.5))
            if self.stripe == "number roundel":
                self._roundel(face, place, long, tall)
            for x in (0.2, 0.81):
                arch = arc(x, 1.02, (radius + 0.05) / long, (radius + 0.09) / tall, 180, 360)
                face.decal(place(arch), (34, 34, 42))

    def _roundel(self, face: Face, place, long: float, tall: float) -> None:
        r = 0.2
        face.decal(ellipse(0.5, 0.48, r / long, r / tall), "white")
        for i in range(1 + self.number % 4):
            face.decal(place(rect(0.45 + 0.03 * i, 0.3, 0.465 + 0.03 * i, 0.64)), "black")

    def _nose(self, half: float, low: float, top: float, wide: float) -> Solid:
        """Headlights, grille, bumper and plate on the front."""
        x = half + 0.025
        face = Face(
            np.array([(x, low, wide), (x, low, -wide), (x, top, -wide), (x, top, wide)]), None
        )
        face.decal(rect(0.0, 0.72, 1.0, 0.98), lit(self.roof, 0.7))
        face.decal(rect(0.36, 0.76, 0.64, 0.92), "white")
        for i in range(self.grille):
            y = 0.3 + 0.36 * i / self.grille
            face.decal(rect(0.3, y, 0.7, y + 0.22 / self.grille), (40, 40, 48))
        for u in (0.15, 0.85):
            lamp = {
                "round": ellipse(u, 0.42, 0.1, 0.2, 16),
                "square": rect(u - 0.11, 0.26, u + 0.11, 0.58),
                "slim": rect(u - 0.14, 0.3, u + 0.14, 0.44),
            }[self.lamps]
            face.decal(lamp, (255, 244, 205))
        return Solid([face])

    def _rear(self, half: float, low: float, belt: float, wide: float) -> Solid:
        x = -half - 0.035
        face = Face(
            np.array(
                [(x, low, -wide), (x, low, wide), (x, belt - 0.02, wide), (x, belt - 0.02, -wide)]
            ),
            None,
        )
        face.decal(rect(0.0, 0.78, 1.0, 0.98), lit(self.roof, 0.7))
        face.decal(rect(0.36, 0.5, 0.64, 0.66), "white")
        for u in (0.1, 0.9):
            shape = (
                ellipse(u, 0.4, 0.07, 0.13, 14)
                if self.lamps == "round"
                else rect(u - 0.08, 0.3, u + 0.08, 0.5)
            )
            face.decal(shape, (206, 48, 44))
        return Solid([face])

    def _cabin(self, cabin: np.ndarray, belt: float, roof: float, wide: float) -> list[Solid]:
        """A tapered box with glass all round."""
        rear, front, rear_top, front_top = cabin
        z, t = wide - 0.02, wide - 0.1
        lower = [(rear, belt, z), (front, belt, z), (front, belt, -z), (rear, belt, -z)]
        upper = [
            (rear_top, roof, t),
            (front_top, roof, t),
            (front_top, roof, -t),
            (rear_top, roof, -t),
        ]
        p = np.array(lower + upper)
        order = ((0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7), (4, 5, 6, 7))
        faces = [Face(p[list(ids)], self.roof) for ids in order]
        glass, panes = (70, 92, 112), 1 + self.doors // 2
        last = panes if self.body != "van" else panes - 1
        for face, flip in ((faces[0], False), (faces[2], True)):
            for i in range(panes):
                u0, u1 = i / panes + 0.025, (i + 1) / panes - 0.025
                pane = rect(u0, 0.16, u1, 0.9)
                if i >= panes - last:
                    face.decal(pane * (-1, 1) + (1, 0) if flip else pane, glass)
        for face in (faces[1], faces[3]):
            face.decal(rect(0.08, 0.12, 0.92, 0.92), glass)
            face.decal(
                np.array([(0.2, 0.12), (0.4, 0.12), (0.25, 0.92), (0.08, 0.92)]), (128, 156, 172)
            )
        return [Solid(faces)]

    def _wheel(self, x: float, radius: float, wide: float) -> list[Solid]:
        ring = ellipse(x, radius, radius, steps=21)[:-1]
        solids = []
        for side in (-1, 1):
            z0, z1 = sorted((side * (wide + 0.003), side * (wide + 0.035)))
            inner = sorted((side * (wide - 0.15), side * (wide - 0.01)))
            solids.append(extruded(ring, z0, z1, (44, 44, 50)))
            solids.append(
                box(
                    (x - 0.8 * radius, 0, inner[0]),
                    (x + 0.8 * radius, 0.15, inner[1]),
                    (40, 40, 46),
                )
            )
            faces = sheet((x - radius, 0, z0 - 0.001), (x + radius, 2 * radius, z1 + 0.001))
            solids.append(Solid([faces[side > 0]]))
            self._rim(solids[-1].faces[0])
        return solids

    def _rim(self, face: Face) -> None:
        metal, dark = (206, 208, 212), (66, 68, 76)
        face.decal(ellipse(0.5, 0.5, 0.33), metal if self.wheel in ("disc", "holed") else dark)
        if self.wheel == "spoked":
            for i in range(self.spokes):
                face.decal(
                    turned(rect(0.47, 0.18, 0.53, 0.5), 360 * i / self.spokes, (0.5, 0.5)), metal
                )
        elif self.wheel == "star":
            face.decal(star(0.5, 0.5, 0.33, tips=5, inner=0.4), metal)
        elif self.wheel == "cross":
            for i in range(4):
                face.decal(turned(rect(0.43, 0.18, 0.57, 0.5), 90 * i + 45, (0.5, 0.5)), metal)
        elif self.wheel == "holed":
            for i in range(self.spokes):
                face.decal(
                    turned(ellipse(0.5, 0.27, 0.045, steps=8), 360 * i / self.spokes, (0.5, 0.5)),
                    dark,
                )
        face.decal(ellipse(0.5, 0.5, 0.09, steps=12), self.accent if self.wheel == "disc" else dark)

    def _racing(self, body: Solid) -> None:
        """Two stripes over the bonnet and the boot."""
        for face in body.faces[2:]:
            for v in (0.36, 0.54):
                face.decal(rect(v, 0, v + 0.1, 1), self.accent)

    def _extras(
        self, cabin: np.ndarray, half: float, belt: float, roof: float, wide: float
    ) -> list[Solid]:
        rear_top, front_top, t = cabin[2], cabin[3], wide - 0.1
        solids = []
        if self.rack:
            solids += [
                box(
                    (rear_top, roof + 0.03, z - 0.015),
                    (front_top, roof + 0.06, z + 0.015),
                    "charcoal",
                )
                for z in (-t, t)
            ]
            solids.append(
                box(
                    (rear_top + 0.1, roof + 0.06, -t + 0.05),
                    (front_top - 0.1, roof + 0.2, t - 0.05),
                    lit(self.accent, 0.9),
                )
            )
        if self.spoiler and self.body in ("coupe", "sedan"):
            solids.append(
                box(
                    (-half, belt + 0.09, -wide + 0.04),
                    (-half + 0.14, belt + 0.12, wide - 0.04),
                    self.accent,
                )
            )
            solids += [
                box(
                    (-half + 0.05, belt, z - 0.02),
                    (-half + 0.09, belt + 0.09, z + 0.02),
                    "charcoal",
                )
                for z in (-0.25, 0.25)
            ]
        if self.body == "pickup":
            solids.append(
                box(
                    (-half + 0.08, belt, -wide + 0.06),
                    (cabin[0] - 0.06, belt + 0.008, wide - 0.06),
                    (52, 50, 56),
                )
            )
        return solids
