"""Pictures on a canvas: thumbnails at given places, framed, faded or captioned.

A canvas is one Axes in units of a thumbnail's side, y downward; a hundred Axes would take seconds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from guie.data.images import open_as_seen
from guie.report.figures.style import INK, MUTED, WIDTH

THUMBNAIL_PX = 96


def canvas(columns: float, rows: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure that holds `columns` x `rows` thumbnails, and its one Axes."""
    figure = Figure(figsize=(width, width * rows / columns))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, columns), ylim=(rows, 0))
    axes.axis("off")
    return figure, axes


def thumbnail(path: Path, side_px: int = THUMBNAIL_PX) -> np.ndarray:
    """The central square of an image as a person sees it: uint8 [side, side, 3]."""
    image = open_as_seen(path)
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return np.asarray(image.resize((side_px, side_px), Image.Resampling.BICUBIC, box=box))


def place(
    axes: Axes,
    picture: np.ndarray,
    x: float,
    y: float,
    side: float = 0.94,
    frame: str | None = None,
    faded: bool = False,
) -> None:
    """Put a picture with its upper left corner at (x, y); framed in a colour, or faded to grey."""
    if faded:
        grey = picture.mean(axis=2, keepdims=True).repeat(3, axis=2)
        picture = (0.35 * grey + 0.65 * 255).astype(np.uint8)
    box = (x, x + side, y + side, y)
    axes.imshow(picture, extent=box, aspect="auto", interpolation="antialiased")
    if frame:
        edge = Rectangle((x, y), side, side, fill=False, edgecolor=frame, linewidth=3.5)
        axes.add_patch(edge)


def heading(axes: Axes, x: float, y: float, text: str, color: str = INK) -> None:
    """A row's name, upright, to the left of its pictures."""
    axes.text(
        x, y, text, rotation=90, ha="center", va="center", color=color, weight="bold", fontsize=7.5
    )


def note(axes: Axes, x: float, y: float, text: str, color: str = MUTED) -> None:
    """Small text below (x, y)."""
    axes.text(
        x,
        y,
        text,
        ha="left",
        va="top",
        fontsize=7.5,
        color=color,
        linespacing=1.1,
        parse_math=False,
    )
