"""A pen that draws outlines through a *warp*: a function from an object's units to pixels.

A warp is for example a homography or a cylinder. So an object is drawn once, in its own units, and
seen from anywhere without resampling any picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFont

from toydomains.kit.colour import RGB, rgb
from toydomains.kit.outline import UNIT_QUAD, Outline, Warp, homography, projective, rect, turned

Box: TypeAlias = tuple[float, float, float, float]
PixelBox: TypeAlias = tuple[int, int, int, int]
Colour: TypeAlias = str | RGB
Mark: TypeAlias = tuple[Any, ...]  # (outline, colour) to fill, or (line, colour, width)


def _ramp(values: np.ndarray) -> Image.Image:
    return Image.fromarray((255 * np.clip(values, 0, 1)).astype(np.uint8))


_T = np.linspace(-1, 1, 64)[None]
DOWN = Image.linear_gradient("L")  # weak at the top, full at the bottom
ROUND = _ramp(0.5 * np.abs(_T + 0.25) ** 2.2)  # a cylinder's shade, lit from the left
GLEAM = _ramp(np.exp(-(((_T + 0.5) / 0.16) ** 2)))  # its highlight


def pick(rng: np.random.Generator, options: Sequence) -> Any:
    """Return one of the options, all equally likely."""
    return options[int(rng.integers(len(options)))]


@lru_cache(maxsize=512)
def lettering(text: str, weight: int = 0, spacing: int = 0) -> Image.Image:
    """Return a trimmed greyscale picture of a line of text in Pillow's embedded TrueType face."""
    font = ImageFont.load_default(size=44)
    width = round(sum(font.getlength(c) + spacing for c in text)) + 40
    picture = Image.new("L", (width, 80))
    draw, x = ImageDraw.Draw(picture), 16.0
    for character in text:
        draw.text((x, 14), character, fill=255, font=font, stroke_width=weight)
        x += font.getlength(character) + spacing
    return picture.crop(picture.getbbox())


class Pen:
    """Draws outlines on an RGBA picture through a warp."""

    def __init__(self, image: Image.Image, warp: Warp, curved: bool = False) -> None:
        self.image = image
        self.warp = warp
        self.curved = curved  # the warp bends lines: subdivide them
        self._draw = ImageDraw.Draw(image)

    def like(self, image: Image.Image, warp: Warp) -> Pen:
        """Return the same pen on another picture or through another warp."""
        pen = copy(self)
        pen.image, pen.warp, pen._draw = image, warp, ImageDraw.Draw(image)
        return pen

    def pixels(self, points: Outline) -> list[tuple[float, float]]:
        """Return the points in pixels, in Pillow's format."""
        points = np.asarray(points, float)
        if self.curved and len(points) < 16:
            steps = np.linspace(0, 1, 6, endpoint=False)[None, :, None]
            ends = np.roll(points, -1, axis=0)[:, None]
            points = (points[:, None] * (1 - steps) + ends * steps).reshape(-1, 2)
        return [tuple(p) for p in self.warp(points).tolist()]

    def fill(
        self, points: Outline, colour: Colour, to: Colour | None = None, alpha: float = 1.0
    ) -> None:
        """Fill an outline; `to` fades the colour from the top to the bottom of the outline."""
        if to is None and alpha >= 1:
            self._draw.polygon(self.pixels(points), fill=rgb(colour))
            return
        self.fade(points, colour, None, alpha)
        if to is not None:
            self.fade(points, to, DOWN, alpha)

    def fill_pixels(self, pixels: Sequence[Sequence[float]], colour: RGB) -> None:
        """Fill an outline given in pixels."""
        self._draw.polygon([tuple(p) for p in pixels], fill=colour)

    def fade(
        self, points: Outline, colour: Colour, ramp: Image.Image | None, alpha: float = 1.0
    ) -> None:
        """Blend a colour over an outline, with a greyscale ramp stretched over it as opacity."""
        mask, box = self._mask(points, alpha)
        if box is None:
            return
        if ramp is not None:
            mask = ImageChops.multiply(mask, ramp.resize(mask.size))
        self.image.paste(rgb(colour), box, mask)

    def line(self, points: Outline, colour: Colour, width: float, closed: bool = False) -> None:
        """Stroke a line, `width` in the pen's units."""
        middle = np.mean(points, axis=0)
        step = self.warp(middle + ((0, 0), (1e-3, 0), (0, 1e-3)))
        px_per_unit = float(np.linalg.norm(step[1:] - step[0], axis=1).mean() * 1e3)
        pixels = self.pixels(points)
        pixels += pixels[:2] * closed
        width_px = max(1, round(width * px_per_unit))
        self._draw.line(pixels, fill=rgb(colour), width=width_px, joint="curve")

    def draw(self, marks: Iterable[Mark]) -> None:
        """Draw the marks of a fixed drawing, one over the other."""
        for points, colour, *width in marks:
            if width:
                self.line(points, colour, *width)
            else:
                self.fill(np.asarray(points), colour)

    def text(
        self,
        text: str,
        box: Box,
        colour: Colour,
        *,
        weight: int = 0,
        spacing: int = 0,
        slant: float = 0.0,
    ) -> None:
        """Set a line of text in the middle of a box, as large as fits."""
        glyphs = lettering(text, weight, spacing)
        x0, y0, x1, y1 = box
        unit = min((x1 - x0) / glyphs.width, (y1 - y0) / glyphs.height)
        w, h = glyphs.width * unit / 2, glyphs.height * unit / 2
        corners = np.array([(-w + 2 * slant * h, -h), (w + 2 * slant * h, -h), (w, h), (-w, h)])
        quad = corners + ((x0 + x1) / 2, (y0 + y1) / 2)
        strips = 8 if self.curved else 1
        for i in range(strips):
            ends = np.array([[i], [i + 1]]) / strips
            (a, b), (d, c) = (quad[j] + (quad[k] - quad[j]) * ends for j, k in ((0, 1), (3, 2)))
            source = rect(
                glyphs.width * i / strips, 0, glyphs.width * (i + 1) / strips, glyphs.height
            )
            target = self.warp(np.array([a, b, c, d]))
            low = np.maximum(np.floor(target.min(axis=0)), 0).astype(int)
            high = np.minimum(np.ceil(target.max(axis=0)), self.image.size).astype(int)
            across, down = target[1] - target[0], target[3] - target[0]
            if (high <= low).any() or abs(across[0] * down[1] - across[1] * down[0]) < 1:
                continue
            size = tuple((high - low).tolist())
            data = tuple(homography(target - low, source).ravel()[:8].tolist())
            mask = glyphs.transform(
                size, Image.Transform.PERSPECTIVE, data, Image.Resampling.BICUBIC
            )
            inside = Image.new("L", size)
            ImageDraw.Draw(inside).polygon([tuple(p) for p in (target - low).tolist()], fill=255)
            box_px = (*low.tolist(), *high.tolist())
            self.image.paste(rgb(colour), box_px, ImageChops.multiply(mask, inside))

    def on(self, quad: Outline) -> Pen:
        """Return a pen whose unit square is a quadrilateral of this one."""
        inner, outer = projective(homography(UNIT_QUAD, np.asarray(quad, float))), self.warp
        return self.like(self.image, lambda points: outer(inner(points)))

    def at(self, x: float, y: float, size: float, angle_deg: float = 0.0) -> Pen:
        """Return a pen whose unit is `size` of this one's, its origin at (x, y), turned clockwise."""
        outer = self.warp
        return self.like(
            self.image, lambda points: outer(turned(points * size, angle_deg, (0, 0)) + (x, y))
        )

    @contextmanager
    def inside(self, points: Outline) -> Iterator[Pen]:
        """Draw on a fresh layer that is pasted through the outline when the block ends."""
        layer = Image.new("RGBA", self.image.size)
        yield self.like(layer, self.warp)
        mask, box = self._mask(points)
        if box is not None:
            part = layer.crop(box)
            # The layer's own holes stay transparent.
            self.image.paste(part, box, ImageChops.multiply(mask, part.getchannel("A")))

    def _mask(self, points: Outline, alpha: float = 1.0) -> tuple[Image.Image, PixelBox | None]:
        """Return the outline's mask, cropped to its bounding box (None if off the picture)."""
        pixels = np.array(self.pixels(points))
        low = np.maximum(np.floor(pixels.min(axis=0)), 0).astype(int)
        high = np.minimum(np.ceil(pixels.max(axis=0)) + 1, self.image.size).astype(int)
        if (high <= low).any():
            return Image.new("L", (1, 1)), None
        mask = Image.new("L", tuple((high - low).tolist()))
        shifted = [tuple(p) for p in (pixels - low).tolist()]
        ImageDraw.Draw(mask).polygon(shifted, fill=round(255 * min(alpha, 1.0)))
        return mask, (*low.tolist(), *high.tolist())
