"""Draw the background of the animals."""

from __future__ import annotations

import numpy as np

from toydomains.illustrations.spec import Character
from toydomains.kit.canvas import Pen
from toydomains.kit.colour import lit
from toydomains.kit.emblem import emblem
from toydomains.kit.outline import ellipse, rect, smooth


def setting(c: Character, pen: Pen) -> None:
    """Draw land or sea, or four to nine small things."""
    accent = c.palette[2]
    if c.setting == "hills":
        ridge = [(-0.4, 1.0), (-0.1, 0.72), (0.25, 0.9), (0.7, 0.66), (1.4, 1.0)]
        pen.fill(smooth([*ridge, (1.4, 1.8), (-0.4, 1.8)]), lit(accent, 1.35))
    elif c.setting == "waves":
        xs = np.linspace(-0.4, 1.4, 40)
        for y in (0.86, 1.0, 1.14):
            crest = np.stack([xs, y + 0.03 * np.sin(xs * 22 + 9 * y)], axis=1)
            pen.fill(np.concatenate([crest, [(1.4, 1.8), (-0.4, 1.8)]]), lit(accent, 2.1 - y))
    else:
        for i in range(4 if c.setting == "clouds" else 9):
            _ornament(c, pen, (0.06 + 0.39 * i) % 1.0, 0.08 + 0.31 * (i * 0.37 % 1.0))


def _ornament(c: Character, pen: Pen, x: float, y: float) -> None:
    main, second, accent = c.palette
    if c.setting == "stars":
        emblem(pen.on(rect(x - 0.04, y - 0.04, x + 0.04, y + 0.04)), "star", accent, second)
    elif c.setting == "clouds":
        for dx, r in ((-0.06, 0.045), (0.0, 0.065), (0.06, 0.045)):
            pen.fill(ellipse(x + dx, y, r * 1.2, r, 16), lit(main, 1.5))
    elif c.setting == "rain":
        pen.line([(x, y), (x - 0.03, y + 0.1)], accent, 0.018)
        pen.line([(1 - x, y + 0.4), (0.97 - x, y + 0.5)], accent, 0.018)
    else:
        meadow = 1.13 - 0.2 * y
        bloom = pen.on(rect(x - 0.05, meadow - 0.05, x + 0.05, meadow + 0.05))
        emblem(bloom, "flower", accent, main)
