"""Cars on the road: a few convex bodies, four wheels, and the details that tell models apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.cars.parts import BODIES, built
from toydomains.kit.canvas import pick
from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import outdoors
from toydomains.kit.solid import Camera
from toydomains.kit.subject import Subject, a, listed

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
            roof=paint_ if rng.random() < 0.6 else pick(rng, ROOFS),
            accent=pick(rng, ("red", "navy") if paint_ == "white" else ACCENTS),
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
        if self.stripe:
            stripe = f"{self.accent} {self.stripe}"
            extras.append(stripe if stripe.endswith("s") else a(stripe))
        extras += [a(f"{self.roof} roof")] * (self.roof != self.paint) + ["a roof rack"] * self.rack
        return f"{a(self.paint)} {self.body} with {listed(*extras)}"

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng, (1.33, 1.5, 1.25, 1.0, 1.4, 0.9))
        scene = outdoors(rng, size, (0.5, 0.66), ("asphalt", "paving", "sand", "grass", "snow"))
        camera = Camera(float(rng.uniform(-52, 52)), float(rng.uniform(4, 16)), 6.0)
        solids = built(self)
        pose = Pose(scale=(0.82, 1.06), turn_deg=3, tilt=0.0, shift=0.07, ground=(0.78, 0.96))
        return portrait(rng, scene, solids, camera, pose, lean=0.2, obstacles=0.35)
