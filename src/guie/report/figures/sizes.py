"""How many images classes have, before the rules and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from guie.report.figures.style import (
    BEFORE,
    FAINT,
    INK,
    MUTED,
    WIDTH,
    domain_colors,
    legible,
    telling,
)

PANEL = (2.2, 1.15)  # inches, without a heading
LEFT, RIGHT, TOP, BOTTOM = 0.42, 0.02, 0.1, 0.2  # margins in it
HEADING, FOOT = 0.45, 0.3  # inches above a panel of many, below them all
SHARES = (0.92, 0.56)  # of the room for a bar: before and, within it, after
TICKS = 9  # sizes that there is room for below a panel
SINGLE = 16  # up to so many images each size has its bin


class Bin(NamedTuple):
    """Classes of a range of sizes."""

    name: str  # "5–8" images
    largest: int  # 8
    before: int
    after: int


class Histogram(NamedTuple):
    """The class sizes of one domain."""

    domain: str
    bins: list[Bin]
    highest: int  # classes in the fullest bin, before or after
    classes: tuple[int, int]  # before, after
    median: tuple[float, float]  # images; 0 where there is no class


def histograms(before: pd.Series, after: pd.Series) -> list[Histogram]:
    """One a domain, all over the same bins: 1, 2, 3 ..., or 1, 2, 3–4, 5–8 ... where classes are large.

    Args:
        before: images of each class, by domain and label, as of `guie.report.pages.class_sizes`.
        after: the same of what is left.
    """
    largest = max((int(sizes.max()) for sizes in (before, after) if len(sizes)), default=1)
    ends = np.arange(1, largest + 1) if largest <= SINGLE else 2 ** np.arange(63)
    ends = ends[: np.searchsorted(ends, largest) + 1]
    sizes_of = [_by_domain(before), _by_domain(after)]
    return [
        _histogram(domain, ends, [of.get(domain, np.array([], int)) for of in sizes_of])
        for domain in sorted({*sizes_of[0], *sizes_of[1]})
    ]


def size_histogram(panel: Histogram, color: str) -> Figure:
    """The class sizes of one domain: grey before the rules, in `color` after; needs a caption."""
    figure = Figure(figsize=PANEL)
    _draw(figure, panel, (BEFORE, color), 0.0, 0.0)
    return figure


def size_histograms(sizes: pd.Series, before: pd.Series | None = None, columns: int = 4) -> Figure:
    """The class sizes of each domain, a panel a domain, heights to compare within a domain.

    Args:
        sizes: images of each class, by domain and label.
        before: the same, before something was taken; drawn in grey behind.
        columns: panels side by side.
    """
    panels = histograms(sizes if before is None else before, sizes)
    colors = domain_colors(panel.domain for panel in panels)
    width, height = PANEL[0], PANEL[1] + HEADING
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(WIDTH, width * columns), FOOT + height * rows))
    for place, panel in enumerate(panels):
        x, y = place % columns * width, FOOT + (rows - 1 - place // columns) * height
        color = colors[panel.domain]
        _draw(figure, panel, (color if before is None else BEFORE, color), x, y)
        _write(figure, x + LEFT, y + PANEL[1] + 0.2, legible(panel.domain, 26), size=10, color=INK)
        _write(figure, x + LEFT, y + PANEL[1] + 0.04, described(panel), size=8)
    grey = "" if before is None else "; grey: before the rules"
    foot = f"classes (height) with so many images, up to the number below a bar{grey}"
    _write(figure, LEFT, 0.06, foot)
    return figure


def described(panel: Histogram) -> str:
    """How many classes of which median size: "20 → 12 classes, median 5 → 8 images"."""
    classes = dict.fromkeys(f"{count:,}" for count in panel.classes)
    median = dict.fromkeys(f"{images:g}" for images in panel.median)
    return f"{' → '.join(classes)} classes, median {' → '.join(median)}"


def _draw(figure: Figure, panel: Histogram, colors: tuple[str, str], x: float, y: float) -> None:
    """A panel, its lower left corner at (x, y) inches, in the colours of before and after.

    Without Axes: two hundred of them would take ten seconds.
    """
    width, height = PANEL[0] - LEFT - RIGHT, PANEL[1] - TOP - BOTTOM
    slot = width / len(panel.bins)
    x, y = x + LEFT, y + BOTTOM
    _bar(figure, x, y + height, width, 0.007, FAINT)
    _write(figure, x - 0.06, y + height, _short(panel.highest, 10_000), ha="right", va="center")
    _write(figure, x - 0.06, y, "0", ha="right", va="center")
    every = -(-len(panel.bins) // TICKS)
    for place, bar in enumerate(panel.bins):
        middle = x + slot * (place + 0.5)
        told = f"{bar.name} images: {bar.before:,} classes before, {bar.after:,} after"
        for count, color, share in zip((bar.before, bar.after), colors, SHARES, strict=True):
            if count:
                wide, high = slot * share, height * count / panel.highest
                telling(_bar(figure, middle - wide / 2, y, wide, high, color), told)
        if place % every == 0:
            _write(figure, middle, y - 0.04, _short(bar.largest), ha="center", va="top")
    _bar(figure, x, y, width, 0.007, MUTED)


def _bar(figure: Figure, x: float, y: float, width: float, height: float, color: str) -> Rectangle:
    """A filled rectangle at inches of the figure."""
    drawn = Rectangle((x, y), width, height, color=color, linewidth=0)
    drawn.set_transform(figure.dpi_scale_trans)
    figure.add_artist(drawn)
    return drawn


def _write(figure: Figure, x: float, y: float, text: str, size: float = 8, color: str = MUTED,
           ha: str = "left", va: str = "bottom") -> None:  # fmt: skip
    figure.text(x, y, text, fontsize=size, color=color, ha=ha, va=va,
                transform=figure.dpi_scale_trans)  # fmt: skip


def _short(count: int, least: int = 1000) -> str:
    """A count where there is little room: 512, 4k."""
    return str(count) if count < least else f"{count / 1000:.0f}k"


def _histogram(domain: str, ends: np.ndarray, sizes: Sequence[np.ndarray]) -> Histogram:
    """Counts of classes before and after; `ends` [bins] are the largest sizes of the bins."""
    before, after = sizes
    counts = [np.bincount(np.searchsorted(ends, n), minlength=len(ends)).tolist() for n in sizes]
    starts = [1, *(ends[:-1] + 1)]
    names = [
        f"{end:,}" if start == end else f"{start:,}–{end:,}"
        for start, end in zip(starts, ends, strict=True)
    ]
    return Histogram(
        domain=domain,
        bins=[Bin(*bar) for bar in zip(names, ends.tolist(), *counts, strict=True)],
        highest=max(map(max, counts)),
        classes=(len(before), len(after)),
        median=(_median(before), _median(after)),
    )


def _median(sizes: np.ndarray) -> float:
    return float(np.median(sizes)) if len(sizes) else 0.0


def _by_domain(sizes: pd.Series) -> dict[str, np.ndarray]:
    return {domain: rows.to_numpy() for domain, rows in sizes.groupby(level="domain")}
