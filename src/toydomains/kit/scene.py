"""Backgrounds: table tops seen from above, interiors with a floor, the outdoors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from toydomains.kit.canvas import DOWN, Pen, homography, pick, projective
from toydomains.kit.colour import RGB, jitter, lit, mix
from toydomains.kit.outline import rect, smooth
from toydomains.kit.texture import SIDE, surface, texture

Size = tuple[int, int]


@dataclass
class Scene:
    """A background picture (RGB, at drawing size) and its words."""

    image: Image.Image
    place: str
    tint: tuple[float, float, float] | None = None  # the light of the hour; None: any lamp's


TABLES = (
    ("oak", "on a wooden table"),
    ("walnut", "on a dark wooden table"),
    ("pale wood", "on a pale wooden table"),
    ("white marble", "on white marble"),
    ("green marble", "on green marble"),
    ("linen", "on a linen cloth"),
    ("blue cloth", "on a blue cloth"),
    ("checked cloth", "on a checked cloth"),
    ("concrete", "on a concrete floor"),
    ("slate", "on dark slate"),
    ("terrazzo", "on terrazzo"),
    ("white tiles", "on white tiles"),
    ("green tiles", "on green tiles"),
    ("grass", "on the grass"),
    ("pink paper", "on pink paper"),
    ("blue paper", "on blue paper"),
    ("yellow paper", "on yellow paper"),
)


def tabletop(
    rng: np.random.Generator, size: Size, tables: Sequence[tuple[str, str]] = TABLES
) -> Scene:
    """Draw a surface seen from above."""
    name, place = pick(rng, tables)
    return Scene(surface(rng, name, size), place)


WALLS: dict[str, RGB] = {
    "white": (238, 234, 226),
    "grey": (186, 188, 192),
    "pink": (236, 202, 194),
    "green": (168, 190, 168),
    "blue": (164, 186, 206),
    "yellow": (240, 216, 158),
    "dark blue": (66, 84, 112),
    "dark green": (64, 92, 80),
}
FLOORS = tuple(
    (name, "")
    for name in ("oak", "walnut", "pale wood", "white tiles", "carpet", "concrete", "green tiles")
)


def room(
    rng: np.random.Generator,
    size: Size,
    horizon: tuple[float, float] = (0.6, 0.74),
    floors: Sequence[tuple[str, str]] = FLOORS,
) -> Scene:
    """Draw a plain, papered or brick wall over a floor (or a table top) in perspective."""
    w, h = size
    edge = float(rng.uniform(*horizon))
    name = pick(rng, tuple(WALLS))
    style = pick(rng, ("plain", "plain", "striped", "panelled", "dotted", "brick"))
    if style == "brick":
        image, place = surface(rng, "bricks", size, turn=False), "by a brick wall"
    else:
        image, place = Image.new("RGB", size, jitter(rng, WALLS[name])), f"by a {name} wall"
        _wall_pattern(rng, image, WALLS[name], style, edge)
        if style in ("striped", "dotted"):
            place = f"by a {style} {name} wall"
    floor, stands = pick(rng, floors)
    _floor(rng, image, floor, edge)
    if not stands:
        skirting = lit(WALLS[name] if style != "brick" else "cream", 1.35)
        ImageDraw.Draw(image).rectangle((0, (edge - 0.03) * h, w, edge * h), fill=skirting)
    return Scene(image, f"{stands} {place}".strip())


def _wall_pattern(
    rng: np.random.Generator, image: Image.Image, colour: RGB, style: str, edge: float
) -> None:
    draw, (w, h) = ImageDraw.Draw(image), image.size
    other = lit(colour, float(pick(rng, (0.9, 1.3))))
    step = int(rng.integers(16, 34))
    if style == "striped":
        for x in range(-int(rng.integers(step)), w, step):
            draw.rectangle((x, 0, x + step // 2, h), fill=other)
    elif style == "dotted":
        for row, y in enumerate(range(0, h, step)):
            for x in range((row % 2) * step // 2, w + step, step):
                draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=other)
    elif style == "panelled":
        for x in range(-int(rng.integers(60)), w, 76):
            box = (x + 8, 0.12 * h, x + 68, edge * h - 0.09 * h)
            draw.rectangle(box, outline=other, width=3)


def _floor(rng: np.random.Generator, image: Image.Image, name: str, edge: float) -> None:
    """Draw a texture from the horizon to the lower edge, in perspective."""
    w, h = image.size
    top = round(edge * h)
    if top >= h:
        return
    x, v = SIDE / 2 + float(rng.uniform(-16, 16)), float(rng.uniform(150, SIDE - 4))
    source = [(x - 170, 4), (x + 170, 4), (x + 74, v), (x - 74, v)]
    matrix = homography([(0, 0), (w, 0), (w, h - top), (0, h - top)], source)
    floor = texture(name).transform(
        (w, h - top),
        Image.Transform.PERSPECTIVE,
        tuple(matrix.ravel()[:8].tolist()),
        Image.Resampling.BILINEAR,
    )
    image.paste(floor, (0, top))


SKIES = (
    ("under a clear sky", (98, 164, 222), (210, 230, 240), (1.04, 1.02, 0.98)),
    ("under a clear sky", (120, 178, 226), (226, 236, 240), (1.06, 1.03, 0.97)),
    ("under a cloudy sky", (150, 166, 184), (216, 220, 224), (0.9, 0.93, 0.97)),
    ("at sunset", (126, 104, 158), (250, 184, 128), (1.05, 0.9, 0.8)),
    ("at sunrise", (150, 176, 212), (252, 212, 176), (1.06, 0.96, 0.86)),
    ("at dusk", (74, 84, 140), (222, 160, 158), (0.85, 0.8, 0.9)),
    ("at night", (36, 46, 96), (92, 104, 160), (0.68, 0.7, 0.88)),
    ("in the mist", (206, 214, 218), (238, 236, 230), (0.98, 0.98, 0.98)),
)
GROUNDS = ("grass", "sand", "paving", "snow", "asphalt")
LAND = {
    "grass": (104, 146, 90),
    "sand": (206, 172, 128),
    "paving": (150, 158, 150),
    "snow": (216, 226, 236),
    "asphalt": (136, 150, 140),
}


def outdoors(
    rng: np.random.Generator,
    size: Size,
    horizon: tuple[float, float] = (0.66, 0.8),
    grounds: Sequence[str] = GROUNDS,
) -> Scene:
    """Draw a sky with clouds, far hills or houses, and a ground in perspective."""
    w, h = size
    place, above, below, tint = pick(rng, SKIES)
    ground = pick(rng, grounds)
    edge = float(rng.uniform(*horizon))
    image = Image.new("RGB", size, below)
    ramp = DOWN.transpose(Image.Transpose.FLIP_TOP_BOTTOM).resize((w, round(edge * h)))
    image.paste(above, (0, 0), ramp)
    _sky(rng, image, place, below)
    pen = Pen(image, projective(np.diag([w, h, 1.0])))
    for depth in (0.5, 0.25):
        land = mix(LAND[ground], below, depth + 0.35 * (place == "in the mist"))
        if rng.random() < 0.6:
            _hills(rng, pen, edge, land, 0.5 * depth)
        else:
            _skyline(rng, pen, edge, land, 0.5 * depth)
    _floor(rng, image, ground, edge)
    return Scene(image, place, tint)


def _sky(rng: np.random.Generator, image: Image.Image, place: str, below: RGB) -> None:
    """Draw soft clouds, and the sun or the moon."""
    w, h = image.size
    mask = Image.new("L", (w // 4, h // 4))
    draw = ImageDraw.Draw(mask)
    for _ in range(int(rng.integers(1, 4)) if "cloudy" not in place else 7):
        x, y = float(rng.uniform(0, w // 4)), float(rng.uniform(0, h / 8))
        for _ in range(5):
            dx, dy = rng.normal(0, 8), rng.normal(0, 1.2)
            r = float(rng.uniform(2, 5))
            draw.ellipse((x + dx - 2 * r, y + dy - r, x + dx + 2 * r, y + dy + r), fill=190)
    mask = mask.filter(ImageFilter.GaussianBlur(1.6)).resize(image.size, Image.Resampling.BICUBIC)
    image.paste(lit(below, 1.45), (0, 0), mask)
    if place in ("at night", "at sunset", "at sunrise"):
        x, y, r = rng.uniform(0.1, 0.9) * w, rng.uniform(0.08, 0.4) * h, 0.05 * h
        colour = (250, 246, 226) if place == "at night" else (255, 226, 170)
        ImageDraw.Draw(image).ellipse((x - r, y - r, x + r, y + r), fill=colour)


def _hills(rng: np.random.Generator, pen: Pen, edge: float, colour: RGB, height: float) -> None:
    xs = np.linspace(-0.2, 1.2, 8)
    ridge = np.stack([xs, edge - height * rng.uniform(0.1, 1, 8)], axis=1)
    outline = np.concatenate([smooth(ridge, closed=False), [(1.2, edge), (-0.2, edge)]])
    pen.fill(outline, colour)


def _skyline(rng: np.random.Generator, pen: Pen, edge: float, colour: RGB, height: float) -> None:
    x = -0.1
    while x < 1.1:
        width = float(rng.uniform(0.05, 0.16))
        pen.fill(rect(x, edge - height * float(rng.uniform(0.2, 1)), x + width, edge), colour)
        x += width
