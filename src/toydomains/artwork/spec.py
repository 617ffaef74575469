"""What a painting is: its genre, its colours, its frame, and the seed of its strokes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.colour import RGB
from toydomains.kit.subject import Subject, a, count

GENRES = (
    "hills", "sea", "still life", "blocks", "circles", "portrait", "night sky", "cut-outs", "town",
    "bouquet",
)  # fmt: skip
# Five colours: the ground, two masses, an accent, a dark.
SCHEMES = (
    ("cream", "teal", "rust", "mustard", "navy"),
    ("light blue", "olive", "tan", "orange", "charcoal"),
    ("pink", "rose", "lavender", "yellow", "purple"),
    ("mustard", "dark green", "rust", "cream", "black"),
    ("navy", "blue", "light blue", "yellow", "black"),
    ("white", "red", "blue", "yellow", "black"),
    ("tan", "brown", "olive", "cream", "charcoal"),
    ("mint", "dark green", "pink", "orange", "navy"),
)
FRAMES: dict[str, tuple[RGB, float]] = {
    "golden": ((206, 164, 84), 0.09), "black": ((44, 42, 46), 0.05), "white": ((242, 240, 234), 0.06),
    "oak": ((190, 142, 92), 0.06), "red": ((160, 58, 50), 0.05), "wide golden": ((190, 146, 70), 0.14),
}  # fmt: skip


@dataclass(frozen=True)
class Painting(Subject):
    """A painting; `seed` fixes every stroke of it."""

    media = ("a photo of", "a visitor's photo of", "a snapshot of")
    kin = ("genre", "scheme", "frame", "shape")

    genre: str
    scheme: tuple[str, str, str, str, str]
    frame: str
    mat: bool
    shape: float
    elements: int
    seed: int

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Painting:
        return cls(
            genre=pick(rng, GENRES),
            scheme=pick(rng, SCHEMES),
            frame=pick(rng, tuple(FRAMES)),
            mat=bool(rng.random() < 0.4),
            shape=float(pick(rng, (0.75, 0.8, 1.0, 1.3, 1.5))),
            elements=int(rng.integers(3, 8)),
            seed=int(rng.integers(0, 2**31)),
        )

    @property
    def name(self) -> str:
        return f"{self.scheme[1]}-{self.genre}".replace(" ", "-")

    @property
    def phrase(self) -> str:
        ground, mass, second, accent, _ = self.scheme
        subject = {
            "hills": f"a painting of {count(self.elements, 'hill')}",
            "sea": f"a painting of {count(self.elements, 'boat')} on the sea",
            "still life": f"a still life with {count(self.elements, 'fruit')}",
            "blocks": f"an abstract painting of {count(self.elements + 3, 'block')}",
            "circles": f"an abstract painting of circles and {count(self.elements, 'line')}",
            "portrait": f"a painted portrait with {self.hair} hair"
            + " and a hat" * (self.elements > 4),
            "night sky": f"a painting of {count(self.elements, 'swirl')} in a night sky",
            "cut-outs": f"a picture of {count(self.elements, 'paper leaf')}",
            "town": f"a painting of a town under {count(self.elements, 'cloud')}",
            "bouquet": f"a painting of {count(self.elements + 3, 'flower')} in a vase",
        }[self.genre]
        mat = " and a white mat" * self.mat
        colours = f"{ground}, {mass}, {second} and {accent}"
        return f"{subject} in {colours} with {a(self.frame)} frame{mat}"

    @property
    def hair(self) -> str:
        """The hair of a portrait."""
        return "long" if self.elements % 2 else "short"
