"""Surfaces: small tiles of wood, stone, cloth and ground, made once per process from fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from PIL import Image

from toydomains.kit.colour import RGB, rgb

SIDE = 384


def noise(rng: np.random.Generator, cells_y: int, cells_x: int, side: int = SIDE) -> np.ndarray:
    """Return smooth value noise in [0, 1], [side, side], with this many cells down and across."""
    grid = Image.fromarray(rng.random((cells_y, cells_x), dtype=np.float32))
    return np.asarray(grid.resize((side, side), Image.Resampling.BICUBIC))


def _blend(first: str | RGB, second: str | RGB, share: np.ndarray) -> np.ndarray:
    a, b = np.array(rgb(first), np.float32), np.array(rgb(second), np.float32)
    return a + (b - a) * np.clip(share, 0, 1)[..., None]


def _rows() -> tuple[np.ndarray, np.ndarray]:
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    return y, x


def _wood(rng: np.random.Generator, light: RGB, dark: RGB) -> np.ndarray:
    """Planks with grain along x."""
    y, x = _rows()
    plank = y // 64
    shift = rng.integers(0, SIDE, 8)[plank]
    wave = noise(rng, 12, 3) * 2.2 + noise(rng, 90, 4) * 1.4 + noise(rng, 200, 12) * 0.5
    grain = 0.5 + 0.5 * np.sin(wave * 9 + plank * 2.4)
    tone = 0.25 * grain + 0.3 * noise(rng, 6, 2) + rng.uniform(0, 0.35, 8)[plank]
    seam = (y % 64 < 2) | ((x + shift) % SIDE < 2)
    return _blend(light, dark, np.where(seam, 1.0, tone * 0.8))


def _marble(rng: np.random.Generator, ground: RGB, vein: RGB) -> np.ndarray:
    """Veins where a warped noise crosses its middle."""
    field = noise(rng, 4, 5) + 0.5 * noise(rng, 9, 11) + 0.25 * noise(rng, 26, 24)
    veins = np.exp(-np.abs(field - 0.85) * 26) + 0.5 * np.exp(-np.abs(field - 1.1) * 40)
    return _blend(ground, vein, 0.7 * veins + 0.25 * (noise(rng, 3, 3) - 0.4))


def _cloth(rng: np.random.Generator, ground: RGB, thread: RGB, check: int = 0) -> np.ndarray:
    """A weave; with `check`, broad woven stripes that cross."""
    y, x = _rows()
    weave = 0.35 * (np.sin(x * 1.6) * np.sin(y * 1.6) > 0) + 0.3 * noise(rng, 160, 14)
    share = 0.4 * weave + 0.3 * noise(rng, 14, 160) * 0.5
    if check:
        share = share + 0.34 * ((y // check) % 2) + 0.34 * ((x // check) % 2)
    return _blend(ground, thread, share)


def _concrete(rng: np.random.Generator, ground: RGB, spot: RGB) -> np.ndarray:
    share = 0.5 * noise(rng, 5, 5) + 0.3 * noise(rng, 30, 30) + 0.25 * noise(rng, 190, 190)
    return _blend(ground, spot, share - 0.25)


def _terrazzo(rng: np.random.Generator, ground: RGB, chips: tuple[RGB, ...]) -> np.ndarray:
    out = _blend(ground, (0, 0, 0), np.zeros((SIDE, SIDE)))
    for i, chip in enumerate(chips):
        spots = noise(rng, 44, 44) > 0.84 + 0.02 * i
        out[spots] = chip
    return out


def _tiles(rng: np.random.Generator, tile: RGB, grout: RGB, side: int = 48) -> np.ndarray:
    y, x = _rows()
    shade = rng.uniform(0, 0.14, (SIDE // side, SIDE // side))[y // side, x // side]
    gloss = 0.08 * ((x % side) + (y % side)) / side
    joint = (x % side < 3) | (y % side < 3)
    return _blend(tile, grout, np.where(joint, 1.0, shade + gloss))


def _bricks(rng: np.random.Generator, brick: RGB, mortar: RGB) -> np.ndarray:
    y, x = _rows()
    row = y // 24
    column = ((x + (row % 2) * 32) // 64) % 6
    tone = rng.uniform(0, 0.3, (16, 6))[row, column] + 0.2 * noise(rng, 120, 120)
    joint = (y % 24 < 3) | ((x + (row % 2) * 32) % 64 < 3)
    return _blend(brick, mortar, np.where(joint, 0.85, tone * 0.7))


def _ground(rng: np.random.Generator, first: RGB, second: RGB) -> np.ndarray:
    """Grass, sand, gravel: fine noise over broad patches."""
    fine = noise(rng, 150, 190) * 0.6 + noise(rng, 30, 40) * 0.4
    return _blend(first, second, 0.75 * fine + 0.3 * noise(rng, 4, 4) - 0.1)


_MAKERS: dict[str, tuple[Callable[..., np.ndarray], *tuple[object, ...]]] = {
    "oak": (_wood, (214, 172, 122), (146, 100, 62)),
    "walnut": (_wood, (146, 102, 74), (76, 48, 36)),
    "pale wood": (_wood, (236, 218, 190), (192, 164, 130)),
    "white marble": (_marble, (242, 240, 236), (150, 150, 158)),
    "green marble": (_marble, (74, 110, 96), (186, 206, 190)),
    "linen": (_cloth, (232, 222, 204), (198, 182, 158)),
    "blue cloth": (_cloth, (92, 122, 164), (54, 78, 120)),
    "checked cloth": (_cloth, (246, 238, 228), (206, 96, 88), 48),
    "concrete": (_concrete, (176, 174, 172), (128, 128, 130)),
    "slate": (_concrete, (82, 88, 96), (52, 56, 64)),
    "terrazzo": (_terrazzo, (236, 230, 222), ((206, 130, 104), (110, 140, 132), (84, 88, 100))),
    "white tiles": (_tiles, (240, 240, 236), (190, 192, 194)),
    "green tiles": (_tiles, (112, 160, 142), (222, 230, 220)),
    "bricks": (_bricks, (176, 96, 74), (210, 198, 184)),
    "grass": (_ground, (124, 164, 84), (66, 112, 58)),
    "sand": (_ground, (236, 212, 168), (206, 176, 128)),
    "asphalt": (_ground, (118, 120, 126), (84, 86, 94)),
    "paving": (_tiles, (196, 188, 178), (150, 142, 134), 32),
    "snow": (_ground, (250, 250, 252), (220, 228, 238)),
    "carpet": (_cloth, (196, 112, 96), (160, 76, 70)),
    "pink paper": (_concrete, (244, 214, 208), (234, 196, 190)),
    "blue paper": (_concrete, (190, 212, 226), (168, 194, 212)),
    "yellow paper": (_concrete, (248, 226, 166), (240, 212, 140)),
}


@cache
def texture(name: str) -> Image.Image:
    """Return the named surface, RGB, `SIDE` x `SIDE` pixels."""
    make, *arguments = _MAKERS[name]
    rng = np.random.default_rng(list(_MAKERS).index(name))
    pixels = np.clip(make(rng, *arguments), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels)


def surface(
    rng: np.random.Generator, name: str, size: tuple[int, int], turn: bool = True
) -> Image.Image:
    """Return a random crop of a surface, [w, h] pixels, in one of eight orientations."""
    tile = texture(name)
    if turn:
        tile = tile.transpose(Image.Transpose(int(rng.integers(0, 7))))
    zoom = float(rng.uniform(0.75, 1.25)) * max(1.0, max(size) * 1.25 / SIDE)
    w, h = size[0] / zoom, size[1] / zoom
    x, y = rng.uniform(0, 1) * (SIDE - w), rng.uniform(0, 1) * (SIDE - h)
    return tile.resize(size, Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
