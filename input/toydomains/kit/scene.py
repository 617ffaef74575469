"""Backgrounds: table tops seen from above, counters before a wall, the outdoors.

Their surfaces are small tiles of wood, stone, cloth and ground, made once per process from fixed seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from toydomains.kit.colour import RGB, jitter, lit, mix, rgb
from toydomains.kit.outline import homography, projective, rect, smooth
from toydomains.kit.pen import DOWN, Pen, pick

SIDE = 384  # of a tile, in pixels
Y, X = np.mgrid[0:SIDE, 0:SIDE]


def noise(rng: np.random.Generator, cells_y: int, cells_x: int) -> np.ndarray:
    """Return smooth value noise in [0, 1], [SIDE, SIDE], with this many cells down and across."""
    grid = Image.fromarray(rng.random((cells_y, cells_x), dtype=np.float32))
    return np.asarray(grid.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def _blend(first: str | RGB, second: str | RGB, share: np.ndarray) -> np.ndarray:
    a, b = np.array(rgb(first), np.float32), np.array(rgb(second), np.float32)
    return a + (b - a) * np.clip(share, 0, 1)[..., None]


def _wood(rng: np.random.Generator, light: RGB, dark: RGB) -> np.ndarray:
    """Planks with grain along x."""
    plank = Y // 64
    shift = rng.integers(0, SIDE, 8)[plank]
    wave = noise(rng, 12, 3) * 2.2 + noise(rng, 90, 4) * 1.4 + noise(rng, 200, 12) * 0.5
    grain = 0.5 + 0.5 * np.sin(wave * 9 + plank * 2.4)
    tone = 0.25 * grain + 0.3 * noise(rng, 6, 2) + rng.uniform(0, 0.35, 8)[plank]
    seam = (Y % 64 < 2) | ((X + shift) % SIDE < 2)
    return _blend(light, dark, np.where(seam, 1.0, tone * 0.8))


def _marble(rng: np.random.Generator, ground: RGB, vein: RGB) -> np.ndarray:
    """Veins where a warped noise crosses its middle."""
    field = noise(rng, 4, 5) + 0.5 * noise(rng, 9, 11) + 0.25 * noise(rng, 26, 24)
    veins = np.exp(-np.abs(field - 0.85) * 26) + 0.5 * np.exp(-np.abs(field - 1.1) * 40)
    return _blend(ground, vein, 0.7 * veins + 0.25 * (noise(rng, 3, 3) - 0.4))


def _cloth(rng: np.random.Generator, ground: RGB, thread: RGB, check: int = 0) -> np.ndarray:
    """A weave; with `check`, broad woven stripes that cross."""
    weave = 0.35 * (np.sin(X * 1.6) * np.sin(Y * 1.6) > 0) + 0.3 * noise(rng, 160, 14)
    share = 0.4 * weave + 0.3 * noise(rng, 14, 160) * 0.5
    if check:
        share = share + 0.34 * ((Y // check) % 2) + 0.34 * ((X // check) % 2)
    return _blend(ground, thread, share)


def _concrete(rng: np.random.Generator, ground: RGB, spot: RGB) -> np.ndarray:
    share = 0.5 * noise(rng, 5, 5) + 0.3 * noise(rng, 30, 30) + 0.25 * noise(rng, 190, 190)
    return _blend(ground, spot, share - 0.25)


def _terrazzo(rng: np.random.Generator, ground: RGB, *chips: RGB) -> np.ndarray:
    out = np.full((SIDE, SIDE, 3), ground, np.float32)
    for i, chip in enumerate(chips):
        out[noise(rng, 44, 44) > 0.84 + 0.02 * i] = chip
    return out


def _tiles(rng: np.random.Generator, tile: RGB, grout: RGB, side: int = 48) -> np.ndarray:
    shade = rng.uniform(0, 0.14, (SIDE // side, SIDE // side))[Y // side, X // side]
    gloss = 0.08 * ((X % side) + (Y % side)) / side
    joint = (X % side < 3) | (Y % side < 3)
    return _blend(tile, grout, np.where(joint, 1.0, shade + gloss))


def _bricks(rng: np.random.Generator, brick: RGB, mortar: RGB) -> np.ndarray:
    row = Y // 24
    column = ((X + (row % 2) * 32) // 64) % 6
    tone = rng.uniform(0, 0.3, (16, 6))[row, column] + 0.2 * noise(rng, 120, 120)
    joint = (Y % 24 < 3) | ((X + (row % 2) * 32) % 64 < 3)
    return _blend(brick, mortar, np.where(joint, 0.85, tone * 0.7))


def _ground(rng: np.random.Generator, first: RGB, second: RGB) -> np.ndarray:
    """Grass, sand, gravel: fine noise over broad patches."""
    fine = noise(rng, 150, 190) * 0.6 + noise(rng, 30, 40) * 0.4
    return _blend(first, second, 0.75 * fine + 0.3 * noise(rng, 4, 4) - 0.1)


# Each with its seed.
_MAKERS: dict[str, tuple[int, Callable[..., np.ndarray], *tuple[object, ...]]] = {
    "oak": (0, _wood, (214, 172, 122), (146, 100, 62)),
    "walnut": (1, _wood, (146, 102, 74), (76, 48, 36)),
    "pale wood": (2, _wood, (236, 218, 190), (192, 164, 130)),
    "white marble": (3, _marble, (242, 240, 236), (150, 150, 158)),
    "green marble": (4, _marble, (74, 110, 96), (186, 206, 190)),
    "linen": (5, _cloth, (232, 222, 204), (198, 182, 158)),
    "blue cloth": (6, _cloth, (92, 122, 164), (54, 78, 120)),
    "checked cloth": (7, _cloth, (246, 238, 228), (206, 96, 88), 48),
    "concrete": (8, _concrete, (176, 174, 172), (128, 128, 130)),
    "slate": (9, _concrete, (82, 88, 96), (52, 56, 64)),
    "terrazzo": (10, _terrazzo, (236, 230, 222), (206, 130, 104), (110, 140, 132), (84, 88, 100)),
    "white tiles": (11, _tiles, (240, 240, 236), (190, 192, 194)),
    "green tiles": (12, _tiles, (112, 160, 142), (222, 230, 220)),
    "bricks": (13, _bricks, (176, 96, 74), (210, 198, 184)),
    "grass": (14, _ground, (124, 164, 84), (66, 112, 58)),
    "sand": (15, _ground, (236, 212, 168), (206, 176, 128)),
    "asphalt": (16, _ground, (118, 120, 126), (84, 86, 94)),
    "paving": (17, _tiles, (196, 188, 178), (150, 142, 134), 32),
    "snow": (18, _ground, (250, 250, 252), (220, 228, 238)),
    "pink paper": (20, _concrete, (244, 214, 208), (234, 196, 190)),
    "blue paper": (21, _concrete, (190, 212, 226), (168, 194, 212)),
    "yellow paper": (22, _concrete, (248, 226, 166), (240, 212, 140)),
}


@cache
def texture(name: str) -> Image.Image:
    """Return the named surface, RGB, `SIDE` x `SIDE` pixels."""
    seed, make, *arguments = _MAKERS[name]
    pixels = np.clip(make(np.random.default_rng(seed), *arguments), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels)


def surface(
    rng: np.random.Generator, name: str, size: tuple[int, int], turn: bool = True
) -> Image.Image:
    """Return a random crop of a surface, [w, h] pixels, in one of eight orientations."""
    tile = texture(name)
    if turn:
        tile = tile.transpose(Image.Transpose(int(rng.integers(0, 7))))
    zoom = rng.uniform(0.75, 1.25) * max(1.0, max(size) * 1.25 / SIDE)
    w, h = size[0] / zoom, size[1] / zoom
    x, y = rng.uniform(0, 1) * (SIDE - w), rng.uniform(0, 1) * (SIDE - h)
    return tile.resize(size, Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))


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


COUNTERS = (
    ("oak", "on a wooden shelf"),
    ("walnut", "on a dark wooden shelf"),
    ("white marble", "on a marble counter"),
    ("slate", "on a slate counter"),
    ("checked cloth", "on a checked tablecloth"),
    ("linen", "on a linen tablecloth"),
    ("terrazzo", "on a terrazzo counter"),
)
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


def counter(rng: np.random.Generator, size: Size) -> Scene:
    """Draw a counter or a shelf in perspective, before a plain, papered or brick wall."""
    w, h = size
    edge = float(rng.uniform(0.3, 0.55))
    name = pick(rng, tuple(WALLS))
    colour = WALLS[name]
    style = pick(rng, ("plain", "plain", "striped", "panelled", "dotted", "brick"))
    if style == "brick":
        image, place = surface(rng, "bricks", size, turn=False), "by a brick wall"
    else:
        image = Image.new("RGB", size, jitter(rng, colour))
        pattern = f"{style} " if style in ("striped", "dotted") else ""
        place = f"by a {pattern}{name} wall"
        draw = ImageDraw.Draw(image)
        other, step = lit(colour, pick(rng, (0.9, 1.3))), int(rng.integers(16, 34))
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
    top, words = pick(rng, COUNTERS)
    _floor(rng, image, top, edge)
    return Scene(image, f"{words} {place}")


def _floor(rng: np.random.Generator, image: Image.Image, name: str, edge: float) -> None:
    """Draw a texture from the horizon to the lower edge, in perspective."""
    w, h = image.size
    top = round(edge * h)
    x, v = SIDE / 2 + rng.uniform(-16, 16), rng.uniform(150, SIDE - 4)
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
LAND = {  # the colour of far hills and houses, by the ground
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
    grounds: Sequence[str] = tuple(LAND),
) -> Scene:
    """Draw a sky with clouds, far hills or houses, and a ground in perspective."""
    w, h = size
    place, above, below, tint = pick(rng, SKIES)
    ground = pick(rng, grounds)
    edge = float(rng.uniform(*horizon))
    image = Image.new("RGB", size, below)
    ramp = DOWN.transpose(Image.Transpose.FLIP_TOP_BOTTOM).resize((w, round(edge * h)))
    image.paste(above, (0, 0), ramp)
    mask = Image.new("L", (w // 4, h // 4))
    draw = ImageDraw.Draw(mask)
    for _ in range(int(rng.integers(1, 4)) if "cloudy" not in place else 7):  # soft clouds
        x, y = rng.uniform(0, w // 4), rng.uniform(0, h / 8)
        for _ in range(5):
            dx, dy, r = rng.normal(0, 8), rng.normal(0, 1.2), rng.uniform(2, 5)
            draw.ellipse((x + dx - 2 * r, y + dy - r, x + dx + 2 * r, y + dy + r), fill=190)
    mask = mask.filter(ImageFilter.GaussianBlur(1.6)).resize(image.size, Image.Resampling.BICUBIC)
    image.paste(lit(below, 1.45), (0, 0), mask)
    if place in ("at night", "at sunset", "at sunrise"):  # the sun or the moon
        x, y, r = rng.uniform(0.1, 0.9) * w, rng.uniform(0.08, 0.4) * h, 0.05 * h
        colour = (250, 246, 226) if place == "at night" else (255, 226, 170)
        ImageDraw.Draw(image).ellipse((x - r, y - r, x + r, y + r), fill=colour)
    pen = Pen(image, projective(np.diag([w, h, 1.0])))
    for depth in (0.5, 0.25):
        land = mix(LAND[ground], below, depth + 0.35 * (place == "in the mist"))
        if rng.random() < 0.6:
            xs = np.linspace(-0.2, 1.2, 8)
            ridge = np.stack([xs, edge - 0.5 * depth * rng.uniform(0.1, 1, 8)], axis=1)
            feet = [(1.2, edge), (-0.2, edge)]
            pen.fill(np.concatenate([smooth(ridge, closed=False), feet]), land)
        else:
            x = -0.1
            while x < 1.1:  # houses
                width = rng.uniform(0.05, 0.16)
                pen.fill(rect(x, edge - 0.5 * depth * rng.uniform(0.2, 1), x + width, edge), land)
                x += width
    _floor(rng, image, ground, edge)
    return Scene(image, place, tint)
