"""Artwork: framed paintings on a wall. A class is one painting; only the photograph changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.artwork.paintings import PAINTERS, SCHEMES
from toydomains.kit.canvas import Pen, pick
from toydomains.kit.colour import RGB, lit
from toydomains.kit.outline import rect
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import room
from toydomains.kit.subject import Subject, a, count

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
            genre=pick(rng, tuple(PAINTERS)),
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
        """How a portrait wears its hair."""
        return "long" if self.elements % 2 else "short"

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng)
        scene = room(rng, size, (0.86, 1.15))
        pose = Pose(scale=(0.74, 1.1), turn_deg=6, tilt=0.14, shift=0.08)
        edge = FRAMES[self.frame][1] + (0.1 if self.mat else 0.0)
        extent = (-edge, -edge, self.shape + edge, 1 + edge)
        pen = blank(size, placed(rng, extent, size, pose))
        self._frame(pen, extent)
        with pen.inside(rect(0, 0, self.shape, 1)) as canvas:
            PAINTERS[self.genre](canvas, np.random.default_rng(self.seed), self)
        if rng.random() < 0.35:
            x = float(rng.uniform(0, 0.6)) * self.shape
            glare = np.array([(x, 0), (x + 0.25, 0), (x + 0.05, 1), (x - 0.2, 1)])
            with pen.inside(rect(0, 0, self.shape, 1)) as glass:
                glass.fill(glare, "white", alpha=0.16)
        return develop(rng, scene, pen.image, lift_px=6, obstacles=0.3)

    def _frame(self, pen: Pen, extent: tuple[float, float, float, float]) -> None:
        colour, thick = FRAMES[self.frame]
        x0, y0, x1, y1 = extent
        pen.fill(rect(x0, y0, x1, y1), lit(colour, 1.12), lit(colour, 0.85))
        for inset, gain in ((0.25, 0.8), (0.4, 1.2), (0.8, 0.75)):
            t = thick * inset
            pen.fill(rect(x0 + t, y0 + t, x1 - t, y1 - t), lit(colour, gain))
        if self.mat:
            pen.fill(rect(x0 + thick, y0 + thick, x1 - thick, y1 - thick), "white")
