"""Illustrations: dressed animals, in two hands. Queries are ink sketches, the index flat prints."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from toydomains.illustrations.animals import ears, hat, muzzle, tail
from toydomains.kit.canvas import Pen, pick, projective
from toydomains.kit.colour import PALETTES, jitter, lit, rgb
from toydomains.kit.emblem import emblem
from toydomains.kit.ink import InkPen
from toydomains.kit.outline import ellipse, mirrored, rect, smooth, turned
from toydomains.kit.pattern import pattern
from toydomains.kit.photo import Pose, View, develop, frame, placed
from toydomains.kit.scene import Scene
from toydomains.kit.subject import Subject, a, listed

ANIMALS: dict[str, str] = {
    "cat": "grey", "bear": "brown", "rabbit": "white", "fox": "orange", "owl": "tan",
    "pig": "pink", "mouse": "grey", "frog": "green", "dog": "tan", "penguin": "charcoal",
}  # fmt: skip
HATS = ("no hat", "a top hat", "a beret", "a crown", "a bobble hat", "a straw hat", "a flower")
WEAR = ("plain", "striped", "dotted", "checked", "zigzag", "starry", "diamond")
THINGS = ("heart", "star", "fish", "flower", "cup", "apple", "leaf", "boat", "moon", "bird")
INKS = ((34, 34, 48), (44, 38, 34), (36, 52, 96), (88, 50, 38))
SETTINGS = ("hills", "stars", "clouds", "rain", "flowers", "waves")


@dataclass(frozen=True)
class Character(Subject):
    """An animal in clothes; the same in both hands."""

    kin = ("animal", "palette", "setting")

    animal: str
    palette: tuple[str, str, str]
    hat: str
    wear: str
    repeats: int
    thing: str
    side: int
    raised: bool
    glasses: bool
    scarf: bool
    trousers: bool
    setting: str
    build: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Character:
        return cls(
            animal=pick(rng, tuple(ANIMALS)),
            palette=pick(rng, PALETTES),
            hat=pick(rng, HATS),
            wear=pick(rng, WEAR),
            repeats=int(rng.integers(3, 6)),
            thing=pick(rng, THINGS),
            side=pick(rng, (-1, 1)),
            raised=bool(rng.random() < 0.5),
            glasses=bool(rng.random() < 0.4),
            scarf=bool(rng.random() < 0.4),
            trousers=bool(rng.random() < 0.5),
            setting=pick(rng, SETTINGS),
            build=float(rng.uniform(0.85, 1.2)),
        )

    @property
    def name(self) -> str:
        return f"{self.animal}-with-{self.thing}"

    @property
    def phrase(self) -> str:
        glasses, scarf = "glasses" if self.glasses else "", "a scarf" if self.scarf else ""
        worn = listed(self.hat, a(f"{self.wear} jumper"), glasses, scarf)
        return f"{a(self.animal)} with {worn}, holding {a(self.thing)}, {self.setting} behind"

    def view(self, rng: np.random.Generator, role: str) -> View:
        ink = role == "query" or (role != "index" and rng.random() < 0.5)
        size = frame(rng, (1.0, 0.8, 0.75, 0.67, 0.9))
        pose = Pose(scale=(0.8, 1.08), turn_deg=9, tilt=0.05, shift=0.06)
        matrix = placed(rng, (-0.02, -0.06, 1.02, 1.3), size, pose)
        page = pick(rng, ("cream", "white", "tan")) if ink else self.palette[1]
        layer = Image.new("RGBA", size, (*jitter(rng, page, 0.04), 255))
        pen = Pen(layer, projective(matrix))
        if ink:
            pen = InkPen(layer, pen.warp, rng, rgb(page), pick(rng, INKS))
        self._setting(pen)
        self._body(pen)
        self._head(pen)
        shot = develop(rng, Scene(layer.convert("RGB"), f"on {page} paper"), layer, obstacles=0.12)
        return replace(shot, medium="an ink sketch of" if ink else "a flat colour print of")

    def _setting(self, pen: Pen) -> None:
        """What stands behind: land or sea, or nine small things."""
        accent = self.palette[2]
        if self.setting == "hills":
            ridge = [(-0.4, 1.0), (-0.1, 0.72), (0.25, 0.9), (0.7, 0.66), (1.4, 1.0)]
            pen.fill(smooth([*ridge, (1.4, 1.8), (-0.4, 1.8)]), lit(accent, 1.35))
        elif self.setting == "waves":
            xs = np.linspace(-0.4, 1.4, 40)
            for y in (0.86, 1.0, 1.14):
                crest = np.stack([xs, y + 0.03 * np.sin(xs * 22 + 9 * y)], axis=1)
                pen.fill(np.concatenate([crest, [(1.4, 1.8), (-0.4, 1.8)]]), lit(accent, 2.1 - y))
        else:
            for i in range(4 if self.setting == "clouds" else 9):
                self._ornament(pen, (0.06 + 0.39 * i) % 1.0, 0.08 + 0.31 * (i * 0.37 % 1.0))

    def _ornament(self, pen: Pen, x: float, y: float) -> None:
        main, second, accent = self.palette
        if self.setting == "stars":
            emblem(pen.on(rect(x - 0.04, y - 0.04, x + 0.04, y + 0.04)), "star", accent, second)
        elif self.setting == "clouds":
            for dx, r in ((-0.06, 0.045), (0.0, 0.065), (0.06, 0.045)):
                pen.fill(ellipse(x + dx, y, r * 1.2, r, 16), lit(main, 1.5))
        elif self.setting == "rain":
            pen.line([(x, y), (x - 0.03, y + 0.1)], accent, 0.018)
            pen.line([(1 - x, y + 0.4), (0.97 - x, y + 0.5)], accent, 0.018)
        else:
            meadow = 1.13 - 0.2 * y
            bloom = pen.on(rect(x - 0.05, meadow - 0.05, x + 0.05, meadow + 0.05))
            emblem(bloom, "flower", accent, main)

    def _body(self, pen: Pen) -> None:
        main, second, accent = self.palette
        fur, w = ANIMALS[self.animal], 0.17 * self.build
        tail(self, pen, fur)
        for x in (0.41, 0.59):
            pen.fill(rect(x - 0.055, 0.98, x + 0.055, 1.2, 0.03), accent if self.trousers else fur)
            shoe = "brown" if self.trousers else lit(fur, 0.8)
            pen.fill(ellipse(x, 1.2, 0.085, 0.045, 16), shoe)
        for side in (-1, 1):
            self._arm(pen, side, (0.5 + side * w, 0.7))
        half = [
            (0.5, 0.58),
            (0.5 + 0.7 * w, 0.6),
            (0.5 + 1.1 * w, 0.78),
            (0.5 + w, 1.03),
            (0.5, 1.05),
        ]
        jumper = smooth(mirrored(half))
        pen.fill(jumper, main)
        with pen.inside(jumper) as cloth:
            knit = cloth.on(rect(0.5 - 1.3 * w, 0.58, 0.5 + 1.3 * w, 1.06))
            pattern(knit, self.wear, self.repeats, second, accent)

    def _arm(self, pen: Pen, side: int, shoulder: tuple[float, float]) -> None:
        """An arm; the one on the character's own side holds the thing, raised or not."""
        main, second, accent = self.palette
        holds = side == self.side
        angle = -side * (130 if self.raised and holds else 30)
        sleeve = smooth([(0.0, -0.05), (0.06, 0.0), (0.055, 0.26), (-0.055, 0.26), (-0.06, 0.0)])
        pen.fill(turned(sleeve, angle, (0, 0)) + shoulder, lit(main, 0.88))
        hand = turned(np.array([(0.0, 0.29)]), angle, (0, 0))[0] + shoulder
        pen.fill(ellipse(*hand, 0.05, steps=14), ANIMALS[self.animal])
        if holds:
            x, y = hand + (side * 0.05, -0.03)
            emblem(pen.on(rect(x - 0.1, y - 0.1, x + 0.1, y + 0.1)), self.thing, accent, second)

    def _head(self, pen: Pen) -> None:
        fur, accent = ANIMALS[self.animal], self.palette[2]
        ears(pen, self.animal, fur)
        wide = {"pig": 0.23, "frog": 0.25, "fox": 0.22, "mouse": 0.2}.get(self.animal, 0.21)
        pen.fill(ellipse(0.5, 0.4, wide, 0.19, 32), fur)
        if self.scarf:
            end = 0.5 - self.side * 0.1
            pen.fill(rect(0.34, 0.57, 0.66, 0.65, 0.04), accent)
            pen.fill(rect(end - 0.045, 0.62, end + 0.045, 0.82), accent)
        muzzle(pen, self.animal, fur)
        y = 0.23 if self.animal == "frog" else 0.37
        for x in (0.41, 0.59):
            white = {"owl": 0.075, "frog": 0.05}.get(self.animal, 0.03)
            pen.fill(ellipse(x, y, white, steps=18), "white")
            pen.fill(ellipse(x, y, 0.022, 0.026, 12), "black")
            if self.glasses:
                pen.line(ellipse(x, y, 0.08, steps=20), "black", 0.016)
        if self.glasses:
            pen.line([(0.49, y - 0.01), (0.51, y - 0.01)], "black", 0.016)
        hat(self, pen)
