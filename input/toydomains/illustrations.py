"""Illustrations: dressed animals, in two hands. Queries are ink sketches, the index flat prints."""

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from toydomains.kit.colour import PALETTES, RGB, jitter, lit, mix, rgb
from toydomains.kit.ornament import emblem, pattern
from toydomains.kit.outline import Outline, arc, ellipse, mirrored, projective, rect, smooth, turned
from toydomains.kit.pen import Colour, Pen, pick
from toydomains.kit.photo import Pose, View, develop, frame, placed
from toydomains.kit.scene import Scene
from toydomains.kit.subject import Subject, a, chance, listed, one_of, real

ANIMALS: dict[str, str] = {
    "cat": "grey", "bear": "brown", "rabbit": "white", "fox": "orange", "owl": "tan",
    "pig": "pink", "mouse": "grey", "frog": "green", "dog": "tan", "penguin": "charcoal",
}  # fmt: skip
TAILS = {
    "cat": [(0.0, 1.0), (0.3, 1.02), (0.36, 0.8), (0.28, 0.72)],
    "mouse": [(0.0, 1.05), (0.3, 1.12), (0.4, 1.0)],
    "dog": [(0.0, 1.0), (0.26, 0.96), (0.3, 0.86)],
    "pig": [(0.0, 1.0), (0.25, 0.98), (0.22, 0.92), (0.3, 0.94)],
    "fox": [(0.0, 0.98), (0.25, 0.86), (0.42, 0.9), (0.36, 1.06), (0.2, 1.1)],
}
EARS: dict[str, Outline] = {
    "cat": [(0.07, 0.26), (0.19, 0.12), (0.21, 0.36)],
    "fox": [(0.05, 0.27), (0.2, 0.06), (0.22, 0.38)],
    "owl": [(0.08, 0.27), (0.2, 0.16), (0.2, 0.34)],
    "pig": [(0.08, 0.25), (0.22, 0.2), (0.2, 0.38)],
    "dog": smooth([(0.14, 0.25), (0.24, 0.3), (0.28, 0.52), (0.2, 0.52)]),
    "rabbit": ellipse(0.1, 0.12, 0.055, 0.19),
    "mouse": ellipse(0.2, 0.24, 0.12),
    "bear": ellipse(0.16, 0.25, 0.075),
    "frog": ellipse(0.09, 0.24, 0.075),
}
HATS = ("no hat", "a top hat", "a beret", "a crown", "a bobble hat", "a straw hat", "a flower")
WEAR = ("plain", "striped", "dotted", "checked", "zigzag", "starry", "diamond")
THINGS = ("heart", "star", "fish", "flower", "cup", "apple", "leaf", "boat", "moon", "bird")
SETTINGS = ("hills", "stars", "clouds", "rain", "flowers", "waves")


@dataclass(frozen=True)
class Character(Subject):
    """An animal in clothes; the same in both drawing styles."""

    kin = ("animal", "palette", "setting")
    title = "{0.animal}-with-{0.thing}"

    animal: str = one_of(tuple(ANIMALS))
    palette: tuple[str, str, str] = one_of(PALETTES)
    hat: str = one_of(HATS)
    wear: str = one_of(WEAR)
    repeats: int = one_of(range(3, 6))
    thing: str = one_of(THINGS)
    side: int = one_of((-1, 1))
    raised: bool = chance(0.5)
    glasses: bool = chance(0.4)
    scarf: bool = chance(0.4)
    trousers: bool = chance(0.5)
    setting: str = one_of(SETTINGS)
    build: float = real(0.85, 1.2)

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
            pen = InkPen(pen, rng, rgb(page), pick(rng, INKS))
        setting(self, pen)
        body(self, pen)
        head(self, pen)
        shot = develop(rng, Scene(layer.convert("RGB"), f"on {page} paper"), layer, obstacles=0.12)
        return replace(shot, medium="an ink sketch of" if ink else "a flat colour print of")


def hat(c: Character, pen: Pen) -> None:
    """Draw the hat, or nothing."""
    main, second, accent = c.palette
    if c.hat == "a top hat":
        pen.fill(rect(0.36, -0.02, 0.64, 0.22), "charcoal")
        pen.fill(rect(0.36, 0.14, 0.64, 0.2), accent)
        pen.fill(rect(0.28, 0.21, 0.72, 0.25, 0.02), "charcoal")
    elif c.hat == "a beret":
        pen.fill(turned(ellipse(0.53, 0.2, 0.2, 0.085), 10, (0.5, 0.2)), accent)
        pen.line([(0.55, 0.13), (0.56, 0.07)], accent, 0.03)
    elif c.hat == "a crown":
        emblem(pen.on(rect(0.36, 0.02, 0.64, 0.27)), "crown", "mustard", "red")
    elif c.hat == "a bobble hat":
        pen.fill(arc(0.5, 0.26, 0.19, 0.2, 180, 360), accent)
        pen.fill(rect(0.3, 0.23, 0.7, 0.29, 0.03), second if second != "cream" else main)
        pen.fill(ellipse(0.5, 0.04, 0.055), main)
    elif c.hat == "a straw hat":
        pen.fill(ellipse(0.5, 0.23, 0.34, 0.06), "mustard")
        pen.fill(arc(0.5, 0.23, 0.17, 0.17, 180, 360), "mustard")
        pen.fill(rect(0.33, 0.17, 0.67, 0.22), main)
    elif c.hat == "a flower":
        emblem(pen.on(rect(0.56, 0.13, 0.74, 0.31)), "flower", accent, "yellow")


def muzzle(pen: Pen, animal: str, fur: str) -> None:
    """Draw the middle of the face: snout or beak, mouth, whiskers."""
    pale = lit(fur, 1.5)
    if animal in ("owl", "penguin"):
        if animal == "penguin":
            pen.fill(ellipse(0.5, 0.43, 0.16, 0.14), "white")
        pen.fill([(0.46, 0.42), (0.54, 0.42), (0.5, 0.5)], "orange")
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
                whisker = [(0.5 + s * 0.1, 0.47 + dy / 2), (0.5 + s * 0.24, 0.46 + 2 * dy)]
                pen.line(whisker, "black", 0.01)


def body(c: Character, pen: Pen) -> None:
    """Draw the clothed body with its limbs, and the thing that it holds."""
    main, second, accent = c.palette
    fur, w = ANIMALS[c.animal], 0.17 * c.build
    if c.animal in TAILS:  # on the side away from the hand that holds something
        tail = smooth(np.array(TAILS[c.animal]) * (-c.side, 1) + (0.5, 0), closed=c.animal == "fox")
        if c.animal == "fox":
            pen.fill(tail, fur)
        else:
            pen.line(tail, fur, 0.035)
    for x in (0.41, 0.59):
        pen.fill(rect(x - 0.055, 0.98, x + 0.055, 1.2, 0.03), accent if c.trousers else fur)
        shoe = "brown" if c.trousers else lit(fur, 0.8)
        pen.fill(ellipse(x, 1.2, 0.085, 0.045, 16), shoe)
    for side in (-1, 1):
        shoulder, holds = (0.5 + side * w, 0.7), side == c.side
        angle = -side * (130 if c.raised and holds else 30)
        sleeve = smooth([(0.0, -0.05), (0.06, 0.0), (0.055, 0.26), (-0.055, 0.26), (-0.06, 0.0)])
        pen.fill(turned(sleeve, angle, (0, 0)) + shoulder, lit(main, 0.88))
        hand = turned([(0.0, 0.29)], angle, (0, 0))[0] + shoulder
        pen.fill(ellipse(hand[0], hand[1], 0.05, steps=14), fur)
        if holds:
            x, y = hand + (side * 0.05, -0.03)
            emblem(pen.on(rect(x - 0.1, y - 0.1, x + 0.1, y + 0.1)), c.thing, accent, second)
    half = [(0.5, 0.58), (0.5 + 0.7 * w, 0.6), (0.5 + 1.1 * w, 0.78), (0.5 + w, 1.03), (0.5, 1.05)]
    jumper = smooth(mirrored(half))
    pen.fill(jumper, main)
    with pen.inside(jumper) as cloth:
        knit = cloth.on(rect(0.5 - 1.3 * w, 0.58, 0.5 + 1.3 * w, 1.06))
        pattern(knit, c.wear, c.repeats, second, accent)


def head(c: Character, pen: Pen) -> None:
    """Draw the head over the body: face, scarf, glasses, hat."""
    fur, accent = ANIMALS[c.animal], c.palette[2]
    for side in (-1, 1) if c.animal in EARS else ():
        pen.fill(np.array(EARS[c.animal]) * (side, 1) + (0.5, 0), lit(fur, 0.88))
    wide = {"pig": 0.23, "frog": 0.25, "fox": 0.22, "mouse": 0.2}.get(c.animal, 0.21)
    pen.fill(ellipse(0.5, 0.4, wide, 0.19, 32), fur)
    if c.scarf:
        end = 0.5 - c.side * 0.1
        pen.fill(rect(0.34, 0.57, 0.66, 0.65, 0.04), accent)
        pen.fill(rect(end - 0.045, 0.62, end + 0.045, 0.82), accent)
    muzzle(pen, c.animal, fur)
    y = 0.23 if c.animal == "frog" else 0.37
    for x in (0.41, 0.59):
        white = {"owl": 0.075, "frog": 0.05}.get(c.animal, 0.03)
        pen.fill(ellipse(x, y, white, steps=18), "white")
        pen.fill(ellipse(x, y, 0.022, 0.026, 12), "black")
        if c.glasses:
            pen.line(ellipse(x, y, 0.08, steps=20), "black", 0.016)
    if c.glasses:
        pen.line([(0.49, y - 0.01), (0.51, y - 0.01)], "black", 0.016)
    hat(c, pen)


def setting(c: Character, pen: Pen) -> None:
    """Draw land or sea, or four to nine small things."""
    main, second, accent = c.palette
    if c.setting == "hills":
        ridge = [(-0.4, 1.0), (-0.1, 0.72), (0.25, 0.9), (0.7, 0.66), (1.4, 1.0)]
        pen.fill(smooth([*ridge, (1.4, 1.8), (-0.4, 1.8)]), lit(accent, 1.35))
        return
    if c.setting == "waves":
        xs = np.linspace(-0.4, 1.4, 40)
        for y in (0.86, 1.0, 1.14):
            crest = np.stack([xs, y + 0.03 * np.sin(xs * 22 + 9 * y)], axis=1)
            pen.fill(np.concatenate([crest, [(1.4, 1.8), (-0.4, 1.8)]]), lit(accent, 2.1 - y))
        return
    for i in range(4 if c.setting == "clouds" else 9):
        x, y = (0.06 + 0.39 * i) % 1.0, 0.08 + 0.31 * (i * 0.37 % 1.0)
        if c.setting == "stars":
            emblem(pen.on(rect(x - 0.04, y - 0.04, x + 0.04, y + 0.04)), "star", accent, second)
        elif c.setting == "clouds":
            for dx, r in ((-0.06, 0.045), (0.0, 0.065), (0.06, 0.045)):
                pen.fill(ellipse(x + dx, y, r * 1.2, r, 16), lit(main, 1.5))
        elif c.setting == "rain":
            pen.line([(x, y), (x - 0.03, y + 0.1)], accent, 0.018)
            pen.line([(1 - x, y + 0.4), (0.97 - x, y + 0.5)], accent, 0.018)
        else:
            y = 1.13 - 0.2 * y  # on the meadow
            emblem(pen.on(rect(x - 0.05, y - 0.05, x + 0.05, y + 0.05)), "flower", accent, main)


class InkPen(Pen):
    """Draws the same outlines as an ink sketch: paper inside, a shaky contour, hatching for darks."""

    def __init__(self, pen: Pen, rng: np.random.Generator, page: RGB, ink: RGB) -> None:
        super().__init__(pen.image, pen.warp)
        self.rng, self.page, self.ink = rng, page, ink

    def fill(
        self, points: Outline, colour: Colour, to: Colour | None = None, alpha: float = 1.0
    ) -> None:
        pixels = self._shaken(points)
        # A thin wash of the colour under the ink, the one thing that both styles share.
        self._draw.polygon(pixels, fill=mix(self.page, colour, 0.4))
        tone = sum(rgb(colour)) / 765
        if tone < 0.62:
            mask, hatching = Image.new("L", self.image.size), Image.new("L", self.image.size)
            ImageDraw.Draw(mask).polygon(pixels, fill=255)
            draw, (w, h) = ImageDraw.Draw(hatching), self.image.size
            for x in range(-h, w, 4 if tone < 0.25 else 7 if tone < 0.45 else 11):
                draw.line((x, h, x + h, 0), fill=255, width=1)
            self.image.paste(self.ink, (0, 0), ImageChops.multiply(mask, hatching))
        self._draw.line(pixels + pixels[:2], fill=self.ink, width=2, joint="curve")

    def line(self, points: Outline, colour: Colour, width: float, closed: bool = False) -> None:
        pixels = self._shaken(points)
        self._draw.line(pixels + pixels[:2] * closed, fill=self.ink, width=2, joint="curve")

    def _shaken(self, points: Outline) -> list[tuple[float, float]]:
        pixels = np.array(self.pixels(points))
        return [tuple(p) for p in (pixels + self.rng.normal(0, 0.4, pixels.shape)).tolist()]


INKS = ((34, 34, 48), (44, 38, 34), (36, 52, 96), (88, 50, 38))
