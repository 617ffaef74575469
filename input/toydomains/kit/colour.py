"""Named colours and harmonies: every colour that a class can have and a caption can name."""

from typing import TypeAlias

import numpy as np

RGB: TypeAlias = tuple[int, int, int]

COLOURS: dict[str, RGB] = {
    "red": (198, 62, 54), "rust": (178, 88, 50), "orange": (230, 134, 66),
    "mustard": (218, 168, 62), "yellow": (246, 210, 98), "cream": (246, 236, 212),
    "olive": (134, 138, 76), "green": (82, 144, 96), "dark green": (40, 84, 68),
    "mint": (166, 214, 190), "teal": (38, 126, 128), "light blue": (136, 190, 222),
    "blue": (58, 104, 172), "navy": (36, 52, 90), "lavender": (178, 164, 214),
    "purple": (108, 62, 106), "pink": (240, 172, 178), "rose": (212, 100, 122),
    "brown": (124, 82, 56), "tan": (206, 170, 126), "grey": (148, 152, 158),
    "charcoal": (64, 68, 76), "white": (248, 246, 240), "black": (38, 38, 44),
}  # fmt: skip

# Harmonies (main, second, accent): many classes share one, so hue alone identifies no class.
PALETTES: tuple[tuple[str, str, str], ...] = (
    ("navy", "cream", "red"),
    ("teal", "cream", "orange"),
    ("mustard", "navy", "white"),
    ("rust", "cream", "teal"),
    ("olive", "cream", "rust"),
    ("dark green", "tan", "mustard"),
    ("pink", "purple", "cream"),
    ("light blue", "white", "red"),
    ("charcoal", "mint", "orange"),
    ("red", "cream", "navy"),
    ("cream", "brown", "teal"),
    ("white", "blue", "mustard"),
    ("rose", "cream", "dark green"),
    ("grey", "white", "rose"),
)


def rgb(colour: str | RGB) -> RGB:
    """Return the RGB value of a colour's name (values pass through)."""
    return COLOURS[colour] if isinstance(colour, str) else colour


def mix(first: str | RGB, second: str | RGB, share: float) -> RGB:
    """Return a blend with `share` in [0, 1] of the second colour."""
    a, b = rgb(first), rgb(second)
    return tuple(round(x + (y - x) * share) for x, y in zip(a, b, strict=True))  # type: ignore


def lit(colour: str | RGB, gain: float) -> RGB:
    """Return the colour under `gain` times the light: shadows turn cool, highlights turn warm."""
    if gain >= 1:
        return mix(colour, (255, 250, 238), min(gain - 1, 1.0))
    return mix(colour, (28, 26, 48), min(1 - gain, 1.0))


def jitter(rng: np.random.Generator, colour: str | RGB, amount: float = 0.08) -> RGB:
    """Return the colour, a little lighter or darker."""
    return lit(colour, 1 + rng.uniform(-amount, amount))
