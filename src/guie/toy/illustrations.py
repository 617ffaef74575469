"""Illustrations: dressed animals, in two hands. Queries are ink sketches, the index flat prints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from guie.toy.canvas import (
    Colour,
    Pen,
    Points,
    Warp,
    arc,
    ellipse,
    mirrored,
    pick,
    rect,
    smooth,
    turned,
)
from guie.toy.colour import PALETTES, RGB, jitter, lit, mix, rgb
from guie.toy.ornament import emblem, pattern
from guie.toy.photo import Pose, View, develop, frame, placed, projective
from guie.toy.scene import Scene, tabletop
from guie.toy.subject import Subject, a

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
        extras = ["glasses"] * self.glasses + ["a scarf"] * self.scarf
        worn = f"{self.hat}, {a(self.wear)} jumper" + "".join(f", {e}" for e in extras)
        return f"{a(self.animal)} with {worn}, holding {a(self.thing)}, {self.setting} behind"

    def view(self, rng: np.random.Generator, role: str) -> View:
        ink = role == "query" or (role != "index" and rng.random() < 0.5)
        size = frame(rng, (1.0, 0.8, 0.75, 0.67, 0.9))
        pose = Pose(scale=(0.8, 1.08), turn_deg=9, tilt=0.05, shift=0.06)
        matrix = placed(rng, (-0.02, -0.06, 1.02, 1.3), size, pose)
        page = pick(rng, ("cream", "white", (236, 226, 204))) if ink else self.palette[1]
        layer = Image.new("RGBA", size, (*jitter(rng, page, 0.04), 255))
        pen = Pen(layer, projective(matrix))
        if ink:
            pen = InkPen(layer, pen.warp, rng, rgb(page), pick(rng, INKS))
        self._setting(pen)
        self._body(pen)
        self._head(pen)
        words = "an ink sketch of" if ink else "a flat colour print of"
        scene = Scene(tabletop(rng, size).image, "on cream paper" if ink else "on coloured paper")
        shot = develop(rng, scene, layer, lift_px=2, obstacles=0.12)
        return View(shot.image, shot.place, shot.light, words)

    def _setting(self, pen: Pen) -> None:
        main, second, accent = self.palette
        if self.setting == "hills":
            pen.fill(
                smooth(
                    [
                        (-0.4, 1.0),
                        (-0.1, 0.72),
                        (0.25, 0.9),
                        (0.7, 0.66),
                        (1.4, 1.0),
                        (1.4, 1.8),
                        (-0.4, 1.8),
                    ]
                ),
                lit(accent, 1.35),
            )
        elif self.setting == "waves":
            for y in (0.86, 1.0, 1.14):
                xs = np.linspace(-0.4, 1.4, 40)
                crest = np.stack([xs, y + 0.03 * np.sin(xs * 22 + 9 * y)], axis=1)
                pen.fill(np.concatenate([crest, [(1.4, 1.8), (-0.4, 1.8)]]), lit(accent, 2.1 - y))
        for i in range(9):
            x, y = (0.06 + 0.39 * i) % 1.0, 0.08 + 0.31 * (i * 0.37 % 1.0)
            if self.setting == "stars":
                emblem(pen.on(rect(x - 0.04, y - 0.04, x + 0.04, y + 0.04)), "star", accent, second)
            elif self.setting == "clouds" and i < 4:
                for dx, r in ((-0.06, 0.045), (0.0, 0.065), (0.06, 0.045)):
                    pen.fill(ellipse(x + dx, y, r * 1.2, r, 16), lit(main, 1.5))
            elif self.setting == "rain":
                pen.line([(x, y), (x - 0.03, y + 0.1)], accent, 0.018)
                pen.line([(1 - x, y + 0.4), (0.97 - x, y + 0.5)], accent, 0.018)
            elif self.setting == "flowers":
                emblem(
                    pen.on(rect(x - 0.05, 1.08 - 0.2 * y, x + 0.05, 1.18 - 0.2 * y)),
                    "flower",
                    accent,
                    main,
                )

    def _body(self, pen: Pen) -> None:
        main, second, accent = self.palette
        fur, w = ANIMALS[self.animal], 0.17 * self.build
        self._tail(pen, fur)
        for s in (-1, 1):
            leg = rect(0.5 + s * 0.09 - 0.055, 0.98, 0.5 + s * 0.09 + 0.055, 1.2, 0.03)
            pen.fill(leg, accent if self.trousers else fur)
            pen.fill(
                ellipse(0.5 + s * 0.1, 1.2, 0.085, 0.045, 16),
                "brown" if self.trousers else lit(fur, 0.8),
            )
        for s in (-1, 1):
            up = self.raised and s == self.side
            arm = smooth([(0.0, -0.05), (0.06, 0.0), (0.055, 0.26), (-0.055, 0.26), (-0.06, 0.0)])
            angle = -s * (130 if up else 30)
            spot = (0.5 + s * (w + 0.0), 0.7)
            pen.fill(turned(arm, angle, (0, 0)) + spot, lit(main, 0.88))
            hand = turned(np.array([(0.0, 0.29)]), angle, (0, 0))[0] + spot
            pen.fill(ellipse(*hand, 0.05, steps=14), fur)
            if s == self.side:
                x, y = hand + (s * 0.05, -0.03)
                emblem(pen.on(rect(x - 0.1, y - 0.1, x + 0.1, y + 0.1)), self.thing, accent, second)
        jumper = smooth(
            mirrored(
                [
                    (0.5, 0.58),
                    (0.5 + 0.7 * w, 0.6),
                    (0.5 + 1.1 * w, 0.78),
                    (0.5 + w, 1.03),
                    (0.5, 1.05),
                ]
            )
        )
        pen.fill(jumper, main)
        with pen.inside(jumper) as cloth:
            pattern(
                cloth.on(rect(0.5 - 1.3 * w, 0.58, 0.5 + 1.3 * w, 1.06)),
                self.wear,
                self.repeats,
                second,
                accent,
            )

    def _tail(self, pen: Pen, fur: str) -> None:
        s = -self.side
        tails = {
            "cat": [
                (0.5, 1.0),
                (0.5 + s * 0.3, 1.02),
                (0.5 + s * 0.36, 0.8),
                (0.5 + s * 0.28, 0.72),
            ],
            "mouse": [(0.5, 1.05), (0.5 + s * 0.3, 1.12), (0.5 + s * 0.4, 1.0)],
            "dog": [(0.5, 1.0), (0.5 + s * 0.26, 0.96), (0.5 + s * 0.3, 0.86)],
            "pig": [
                (0.5, 1.0),
                (0.5 + s * 0.25, 0.98),
                (0.5 + s * 0.22, 0.92),
                (0.5 + s * 0.3, 0.94),
            ],
        }
        if self.animal == "fox":
            brush = smooth(
                [
                    (0.5, 0.98),
                    (0.5 + s * 0.25, 0.86),
                    (0.5 + s * 0.42, 0.9),
                    (0.5 + s * 0.36, 1.06),
                    (0.5 + s * 0.2, 1.1),
                ]
            )
            pen.fill(brush, fur)
        elif self.animal in tails:
            pen.line(smooth(tails[self.animal], closed=False), fur, 0.035)

    def _head(self, pen: Pen) -> None:
        fur = ANIMALS[self.animal]
        main, second, accent = self.palette
        _ears(pen, self.animal, fur)
        wide = {"pig": 0.23, "frog": 0.25, "fox": 0.22, "mouse": 0.2}.get(self.animal, 0.21)
        pen.fill(ellipse(0.5, 0.4, wide, 0.19, 32), fur)
        if self.scarf:
            pen.fill(rect(0.34, 0.57, 0.66, 0.65, 0.04), accent)
            pen.fill(
                rect(0.5 - self.side * 0.1 - 0.045, 0.62, 0.5 - self.side * 0.1 + 0.045, 0.82),
                accent,
            )
        _muzzle(pen, self.animal, fur)
        for s in (-1, 1):
            y = 0.23 if self.animal == "frog" else 0.37
            r = 0.075 if self.animal == "owl" else 0.05 if self.animal == "frog" else 0.03
            pen.fill(ellipse(0.5 + s * 0.09, y, r, steps=18), "white")
            pen.fill(ellipse(0.5 + s * 0.09, y, 0.022, 0.026, 12), "black")
            if self.glasses:
                pen.line(ellipse(0.5 + s * 0.09, y, 0.08, steps=20), "black", 0.016)
        if self.glasses:
            pen.line([(0.49, 0.36), (0.51, 0.36)], "black", 0.016)
        self._hat(pen)

    def _hat(self, pen: Pen) -> None:
        main, second, accent = self.palette
        if self.hat == "a top hat":
            pen.fill(rect(0.36, -0.02, 0.64, 0.22), "charcoal")
            pen.fill(rect(0.36, 0.14, 0.64, 0.2), accent)
            pen.fill(rect(0.28, 0.21, 0.72, 0.25, 0.02), "charcoal")
        elif self.hat == "a beret":
            pen.fill(turned(ellipse(0.53, 0.2, 0.2, 0.085), 10, (0.5, 0.2)), accent)
            pen.line([(0.55, 0.13), (0.56, 0.07)], accent, 0.03)
        elif self.hat == "a crown":
            emblem(pen.on(rect(0.36, 0.02, 0.64, 0.27)), "crown", "mustard", "red")
        elif self.hat == "a bobble hat":
            pen.fill(arc(0.5, 0.26, 0.19, 0.2, 180, 360), accent)
            pen.fill(rect(0.3, 0.23, 0.7, 0.29, 0.03), second if second != "cream" else main)
            pen.fill(ellipse(0.5, 0.04, 0.055), main)
        elif self.hat == "a straw hat":
            pen.fill(ellipse(0.5, 0.23, 0.34, 0.06), "mustard")
            pen.fill(arc(0.5, 0.23, 0.17, 0.17, 180, 360), "mustard")
            pen.fill(rect(0.33, 0.17, 0.67, 0.22), main)
        elif self.hat == "a flower":
            emblem(pen.on(rect(0.56, 0.13, 0.74, 0.31)), "flower", accent, "yellow")


def _ears(pen: Pen, animal: str, fur: str) -> None:
    for s in (-1, 1):
        place = np.array([s, 1.0])
        ear = {
            "cat": np.array([(0.07, 0.26), (0.19, 0.12), (0.21, 0.36)]),
            "fox": np.array([(0.05, 0.27), (0.2, 0.06), (0.22, 0.38)]),
            "owl": np.array([(0.08, 0.27), (0.2, 0.16), (0.2, 0.34)]),
            "pig": np.array([(0.08, 0.25), (0.22, 0.2), (0.2, 0.38)]),
            "dog": smooth([(0.14, 0.25), (0.24, 0.3), (0.28, 0.52), (0.2, 0.52)]),
            "rabbit": ellipse(0.1, 0.12, 0.055, 0.19),
            "mouse": ellipse(0.2, 0.24, 0.12),
            "bear": ellipse(0.16, 0.25, 0.075),
            "frog": ellipse(0.09, 0.24, 0.075),
        }.get(animal)
        if ear is not None:
            pen.fill(ear * place + (0.5, 0), lit(fur, 0.88))


def _muzzle(pen: Pen, animal: str, fur: str) -> None:
    pale = lit(fur, 1.5)
    if animal in ("owl", "penguin"):
        if animal == "penguin":
            pen.fill(ellipse(0.5, 0.43, 0.16, 0.14), "white")
        pen.fill(np.array([(0.46, 0.42), (0.54, 0.42), (0.5, 0.5)]), "orange")
        return
    if animal == "pig":
        pen.fill(ellipse(0.5, 0.46, 0.085, 0.06), lit(fur, 0.85))
        for x in (0.47, 0.53):
            pen.fill(ellipse(x, 0.46, 0.014, 0.022, 10), "brown")
    elif animal != "frog":
        pen.fill(ellipse(0.5, 0.48, 0.11, 0.08), pale)
        pen.fill(smooth([(0.46, 0.43), (0.54, 0.43), (0.5, 0.47)]), "black")
    pen.line(arc(0.5, 0.48, 0.1 if animal == "frog" else 0.055, 0.05, 20, 160, 10), "black", 0.014)
    if animal in ("cat", "mouse", "rabbit"):
        for s in (-1, 1):
            for dy in (-0.02, 0.02):
                pen.line(
                    [(0.5 + s * 0.1, 0.47 + dy / 2), (0.5 + s * 0.24, 0.46 + 2 * dy)], "black", 0.01
                )


class InkPen(Pen):
    """Draws the same outlines as an ink sketch: paper inside, a shaky contour, hatching for darks."""

    def __init__(
        self, image: Image.Image, warp: Warp, rng: np.random.Generator, page: RGB, ink: RGB
    ) -> None:
        super().__init__(image, warp)
        self.rng, self.page, self.ink = rng, page, ink

    def like(self, image: Image.Image, warp: Warp) -> InkPen:
        return InkPen(image, warp, self.rng, self.page, self.ink)

    def fill(
        self, points: Points, colour: Colour, to: Colour | None = None, alpha: float = 1.0
    ) -> None:
        pixels = self._shaken(points)
        # A thin wash of the colour under the ink, the one thing that both hands share.
        self._draw.polygon(pixels, fill=mix(self.page, colour, 0.22))
        tone = sum(rgb(colour)) / 765
        if tone < 0.62:
            self._hatch(pixels, gap=4 if tone < 0.25 else 7 if tone < 0.45 else 11)
        self._draw.line(pixels + pixels[:2], fill=self.ink, width=2, joint="curve")

    def line(self, points: Points, colour: Colour, width: float, closed: bool = False) -> None:
        pixels = self._shaken(points)
        self._draw.line(pixels + pixels[:2] * closed, fill=self.ink, width=2, joint="curve")

    def _shaken(self, points: Points) -> list[tuple[float, float]]:
        pixels = np.array(self.pixels(points))
        return [tuple(p) for p in (pixels + self.rng.normal(0, 0.4, pixels.shape)).tolist()]

    def _hatch(self, pixels: list[tuple[float, float]], gap: int) -> None:
        mask = Image.new("L", self.image.size)
        ImageDraw.Draw(mask).polygon(pixels, fill=255)
        lines = Image.new("L", self.image.size)
        draw, (w, h) = ImageDraw.Draw(lines), self.image.size
        for x in range(-h, w, gap):
            draw.line((x, h, x + h, 0), fill=255, width=1)
        self.image.paste(self.ink, (0, 0), ImageChops.multiply(mask, lines))
