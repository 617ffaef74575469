"""Parameters of a car model: a body, paints, wheels, lamps, and small differences in measures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.subject import Subject, a, listed

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
