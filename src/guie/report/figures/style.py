"""One look for every figure: colours, sizes, axes without clutter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import cycle
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Ten colours that stay apart for colour-blind readers too (Petroff 2021, arXiv 2107.02270).
PALETTE = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
INK, MUTED, FAINT = "#222222", "#777777", "#dddddd"
ACCENT, LOST, BEFORE = "#2a73b8", "#b3400a", "#c9cdd0"
RIGHT, WRONG, IGNORED = "#1a9641", "#d7191c", "#bbbbbb"
WIDTH = 9.0  # inches: 900 px at 100 dpi, the width of a README
TELLING = "tell:"
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def domain_colors(domains: Iterable[str]) -> dict[str, str]:
    """A colour for each domain, the same in every figure of one set of domains."""
    return dict(zip(sorted(set(domains)), cycle(PALETTE)))


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure, inches; not pyplot's, so that nothing is shown twice or kept in memory."""
    return Figure(figsize=(width, height), layout="constrained")


def tidy(
    axes: Axes, title: str = "", grid: Literal["x", "y"] | None = None, pad: float = 6
) -> Axes:
    """Take away the box; a bold title to the left; a pale grid on one axis ("x" or "y")."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    if title:
        axes.set_title(title, loc="left", pad=pad, fontsize=10, fontweight="bold", color=INK)
    if grid:
        axes.grid(axis=grid, color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
    return axes


def legible(name: str, chars: int = 30) -> str:
    """A name from outside as it can be drawn: one line, not too long, its dollars no formula."""
    name = UNPRINTABLE.sub("\ufffd", " ".join(name.split()))
    name = name if len(name) <= chars else f"{name[: chars - 1]}…"
    return name.replace("$", r"\$")


def telling(artist: Artist, text: str) -> None:
    """Have a page show `text` where the mouse rests on what was drawn; a picture does without."""
    artist.set_gid(TELLING + UNPRINTABLE.sub("\ufffd", text))
