"""Parameters of a toy: its kind, three paints, a mark, a hat, and the numbers of its parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.subject import Subject, a, count

KINDS = (
    "robot", "bear", "rabbit", "duck", "rocket", "train", "block tower", "ring stacker",
    "spinning top", "boat", "drum", "wooden doll",
)  # fmt: skip
PAINTS = (
    ("red", "yellow", "blue"), ("teal", "orange", "cream"), ("yellow", "navy", "red"),
    ("light blue", "pink", "white"), ("green", "red", "cream"), ("blue", "white", "orange"),
    ("pink", "mint", "purple"), ("orange", "teal", "white"), ("lavender", "yellow", "rose"),
)  # fmt: skip
PLAIN_NAMES = ("block tower", "ring stacker", "wooden doll", "spinning top")
MARKS = ("star", "round", "square", "striped", "plain")
HATS = ("no hat", "a cone hat", "a flat hat", "a bobble", "a bow")


@dataclass(frozen=True)
class Toy(Subject):
    """A toy; `parts` counts wagons, rings, blocks, fins or buttons, depending on the kind."""

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
        toy = "" if self.kind in PLAIN_NAMES else "toy "
        mark = "no mark" if self.mark == "plain" else a(f"{self.mark} mark")
        belly = f"{mark} on its belly and {self.hat}"
        collar = "a collar" if self.collar else "no collar"
        wheels = "wheels" if self.rolls else "no wheels"
        sides = "striped" if self.mark in ("striped", "plain") else "zigzag"
        details = {
            "robot": f"{self.eyes} eyes, {mark} and {self.hat}",
            "bear": belly,
            "rabbit": belly,
            "duck": f"{third} wings, {collar}, {wheels} and {self.hat}",
            "rocket": f"{count(self.parts, 'fin')}, {third} portholes and "
            + ("no band" if self.mark == "plain" else "a band"),
            "train": f"{count(self.parts - 1, 'wagon')} and {self.hat} on its chimney",
            "block tower": f"{count(self.parts + 2, 'block')} and {self.hat}",
            "ring stacker": f"{count(self.parts + 1, 'ring')} and {a(third)} ball",
            "spinning top": f"{count(2 * self.parts, 'band')} and {a(third)} handle",
            "boat": f"{count(min(self.parts, 3), 'sail')} and {mark}",
            "drum": f"{sides} sides, {third} rims and {'two' if self.sticks else 'no'} sticks",
            "wooden doll": f"{count(self.parts, 'button')} and {self.hat}",
        }
        return a(f"{main} and {second} {toy}{self.kind} with {details[self.kind]}")

    @property
    def collar(self) -> bool:
        """Whether a duck wears a collar."""
        return self.eyes == "square"

    @property
    def rolls(self) -> bool:
        """Whether a duck stands on wheels."""
        return self.parts > 3

    @property
    def sticks(self) -> bool:
        """Whether sticks lie on a drum."""
        return self.hat != "no hat"
