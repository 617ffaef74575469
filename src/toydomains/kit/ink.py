"""A pen that draws as an ink sketch does."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from toydomains.kit.canvas import Colour, Pen, Warp
from toydomains.kit.colour import RGB, mix, rgb
from toydomains.kit.outline import Pairs, Points


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
        # A thin wash of the colour under the ink, the one thing that both styles share.
        self._draw.polygon(pixels, fill=mix(self.page, colour, 0.4))
        tone = sum(rgb(colour)) / 765
        if tone < 0.62:
            self._hatch(pixels, gap=4 if tone < 0.25 else 7 if tone < 0.45 else 11)
        self._draw.line(pixels + pixels[:2], fill=self.ink, width=2, joint="curve")

    def line(
        self, points: Points | Pairs, colour: Colour, width: float, closed: bool = False
    ) -> None:
        pixels = self._shaken(points)
        self._draw.line(pixels + pixels[:2] * closed, fill=self.ink, width=2, joint="curve")

    def _shaken(self, points: Points | Pairs) -> list[tuple[float, float]]:
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
