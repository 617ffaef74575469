"""Copies as the web makes them, of a domain's own images: by how much do copies differ there?"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial

from PIL import Image, ImageEnhance

EACH = 3  # of an image


def compressed(image: Image.Image, quality: int) -> Image.Image:
    """As JPEG leaves it."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def cut(image: Image.Image, share: float) -> Image.Image:
    """Without that share of the side at each side."""
    x, y = round(share * image.width), round(share * image.height)
    return image.crop((x, y, image.width - x, image.height - y))


def resized(image: Image.Image, scale: float) -> Image.Image:
    """Both sides scaled, one pixel at least."""
    width, height = (max(round(scale * side), 1) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def brighter(image: Image.Image, gain: float) -> Image.Image:
    """Every level times `gain`."""
    return ImageEnhance.Brightness(image).enhance(gain)


def contrasted(image: Image.Image, gain: float) -> Image.Image:
    """Every level's distance from the mean times `gain`."""
    return ImageEnhance.Contrast(image).enhance(gain)


# What cleaning promises to find: see EXPERIMENTS.md, "A copy is not a look-alike".
ALTERATIONS: tuple[Callable[[Image.Image], Image.Image], ...] = (
    partial(compressed, quality=30),
    partial(resized, scale=0.5),
    partial(cut, share=0.04),
    partial(brighter, gain=1.3),
    partial(resized, scale=2.0),
    partial(contrasted, gain=0.7),
    partial(cut, share=0.02),
    partial(contrasted, gain=1.3),
    partial(brighter, gain=0.7),
)


def altered_copies(image: Image.Image, number: int) -> list[Image.Image]:
    """Some copies of the image with that number: over nine images, each alteration is used alike."""
    chosen = ((EACH * number + n) % len(ALTERATIONS) for n in range(EACH))
    return [ALTERATIONS[n](image) for n in chosen]
