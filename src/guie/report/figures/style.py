"""The common style of all figures: colours, sizes, plain axes, thumbnails on a canvas."""

import re
from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image, ImageOps

from guie.data.images import open_as_seen

# Ten colours that colour-blind readers can distinguish too (Petroff 2021, arXiv 2107.02270).
PALETTE = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
INK, MUTED, FAINT = "#222222", "#777777", "#dddddd"
ACCENT, LOST, BEFORE = "#2a73b8", "#b3400a", "#c9cdd0"
RIGHT, WRONG, IGNORED = "#1a9641", "#d7191c", "#bbbbbb"
WIDTH = 9.0  # inches: 900 px at 100 dpi, the width of a README
LEGEND_BELOW: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 9}
DASHES = ("-", "--", ":", "-.")
VAL = "val_r_at_1"  # in the log of a run
TOOLTIP = "tooltip:"
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
THUMBNAIL_PX, SIDE = 96, 0.94  # of a picture, in pixels and in units of the canvas


def domain_colors(domains: Iterable[str]) -> dict[str, str]:
    """Assign a colour to each domain, the same in every figure with these domains."""
    return dict(zip(sorted(set(domains)), cycle(PALETTE)))


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Create an empty figure, size in inches, outside pyplot, which would show it twice and keep it."""
    return Figure(figsize=(width, height), layout="constrained")


def tidy(
    axes: Axes, title: str = "", grid: Literal["x", "y"] | None = None, pad: float = 6
) -> Axes:
    """Remove the frame, set a bold title on the left and a pale grid on one axis ("x" or "y")."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    if title:
        axes.set_title(title, loc="left", pad=pad, fontsize=10, fontweight="bold", color=INK)
    if grid:
        axes.grid(axis=grid, color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
    return axes


def name_axes(axes: Axes, x: str = "", y: str = "", size: int = 9) -> None:
    """Write the names of the axes in grey."""
    axes.set_xlabel(x, fontsize=size, color=MUTED)
    axes.set_ylabel(y, fontsize=size, color=MUTED)


def name_rows(axes: Axes, names: Iterable[str]) -> None:
    """Name the rows of a chart, the first at y = 0, without tick marks."""
    names = list(names)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)


def legend_below(
    figure: Figure, colors: Mapping[str, str], dashes: Mapping[str, Any] | None = None
) -> None:
    """Add a legend below all panels: a line for each colour, then for each stroke."""
    lines = [Line2D([], [], color=color, label=legible(name)) for name, color in colors.items()]
    for name, dash in (dashes or {}).items():
        lines.append(Line2D([], [], color=INK, linestyle=dash, label=legible(name)))
    figure.legend(handles=lines, **LEGEND_BELOW, ncols=6 if dashes else 5)


def write_inside(axes: Axes, text: str) -> None:
    """Write in the middle of an empty panel why it is empty."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=MUTED)


def legible(name: str, chars: int = 30) -> str:
    """Make an external name drawable: one line, at most `chars` long, with dollar signs escaped."""
    name = UNPRINTABLE.sub("\ufffd", " ".join(name.split()))
    name = name if len(name) <= chars else f"{name[: chars - 1]}…"
    return name.replace("$", r"\$")


def tooltip(artist: Artist, text: str) -> None:
    """Attach text that HTML pages show on hover; PNG files ignore it."""
    artist.set_gid(TOOLTIP + UNPRINTABLE.sub("\ufffd", text))


def canvas(columns: float, rows: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """Create a figure for `columns` x `rows` thumbnails; return it and its only Axes."""
    figure = Figure(figsize=(width, width * rows / columns))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, columns), ylim=(rows, 0))
    axes.axis("off")
    return figure, axes


def thumbnail(path: Path, side_px: int = THUMBNAIL_PX) -> np.ndarray:
    """Return the central square of an image, orientation applied: uint8 [side, side, 3]."""
    image = open_as_seen(path)
    return np.asarray(ImageOps.fit(image, (side_px, side_px), Image.Resampling.BICUBIC))


def place(
    axes: Axes, picture: np.ndarray, x: float, y: float, frame: str = "", faded: bool = False
) -> None:
    """Draw a picture with its upper left corner at (x, y), optionally framed or faded to grey."""
    if faded:
        grey = picture.mean(axis=2, keepdims=True).repeat(3, axis=2)
        picture = (0.35 * grey + 0.65 * 255).astype(np.uint8)
    box = (x, x + SIDE, y + SIDE, y)
    axes.imshow(picture, extent=box, aspect="auto", interpolation="antialiased")
    if frame:
        edge = Rectangle((x, y), SIDE, SIDE, fill=False, edgecolor=frame, linewidth=3.5)
        axes.add_patch(edge)


def heading(axes: Axes, x: float, y: float, text: str, color: str = INK) -> None:
    """Write a row's name vertically, to the left of its pictures."""
    centre: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "center"}
    axes.text(x, y, text, **centre, color=color, weight="bold", fontsize=7.5)


def note(axes: Axes, x: float, y: float, text: str, color: str = MUTED) -> None:
    """Write small text below (x, y)."""
    style: dict[str, Any] = {"ha": "left", "va": "top", "linespacing": 1.1, "parse_math": False}
    axes.text(x, y, text, fontsize=7.5, color=color, **style)
