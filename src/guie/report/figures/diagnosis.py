"""Small panels of a report's page, each as wide as a phone: recall, distances, difficulty, hubs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from guie.report.figures.style import FAINT, INK, MUTED, PALETTE, new_figure, telling, tidy

PANEL = (2.0, 3.2)  # inches, height and width: 352 px of a page
SMALL = 8
BINS = 40  # of distances
CLASS_BINS = 10  # of R@1
# Told apart by lightness and dash as well as by colour.
KINDS: dict[str, tuple[str, str]] = {
    "nearest right": ("#3f90da", "-"),
    "any right": ("#3f90da", ":"),
    "nearest wrong": ("#e76300", "-"),
    "any wrong": ("#e76300", ":"),
}


def recall_panel(recalls: pd.DataFrame) -> Figure:
    """R@k over k, a line a model.

    Args:
        recalls: 0 to 1; a row a k, rising; a column a model.
    """
    figure, axes = _panel("R@k")
    for (name, values), color in zip(recalls.items(), PALETTE, strict=False):
        (line,) = axes.plot(recalls.index, values, color=color, linewidth=1.8)
        telling(line, f"{name}: " + ", ".join(f"R@{k} {v:.3f}" for k, v in values.items()))
    axes.set_xscale("log")
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.set_xticks([], minor=True)
    axes.set(xlim=(1, recalls.index.max()), ylim=(max(0.0, recalls.to_numpy().min() - 0.05), 1.005))
    axes.set_xlabel("k", fontsize=SMALL, color=MUTED)
    return figure


def gap_panel(distances: Mapping[str, np.ndarray], most: float) -> Figure:
    """How distances are spread, an outline a kind of `KINDS`; NaN is left out.

    Args:
        most: the axis' end, the same in all panels of a page.
    """
    figure, axes = _panel("queries")
    edges = np.linspace(0, most, BINS + 1)
    for kind, values in distances.items():
        color, dash = KINDS[kind]
        values = values[np.isfinite(values)]
        counts, _ = np.histogram(values, edges)
        drawn = axes.stairs(counts, edges, color=color, linestyle=dash, linewidth=1.5)
        if len(values):
            telling(drawn, f"{kind}: median {np.median(values):.3f}")
    axes.set(xlim=(0, most), ylim=(0, None), yticks=[])
    axes.set_xlabel("distance", fontsize=SMALL, color=MUTED)
    return figure


def difficulty_panel(r_at_1_C: np.ndarray, color: str) -> Figure:
    """How many classes have which R@1: a bar a tenth, the last one closed."""
    figure, axes = _panel("classes")
    counts, edges = np.histogram(r_at_1_C, CLASS_BINS, (0, 1))
    bars = axes.bar(edges[:-1], counts, 0.9 / CLASS_BINS, align="edge", color=color)
    for bar, start, count in zip(bars, edges, counts, strict=False):
        telling(bar, f"R@1 {start:.1f} to {start + 1 / CLASS_BINS:.1f}: {count:,} classes")
    axes.set(xlim=(0, 1))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlabel("R@1 of the class", fontsize=SMALL, color=MUTED)
    return figure


def occurrence_panel(counts: Mapping[str, np.ndarray]) -> Figure:
    """How many images are found how often, both logarithmic; dots, a colour a model.

    A straight tail of dots to the right is what hubs look like.

    Args:
        counts: by model, N_k of each image; images that are never found stand left of 1.
    """
    figure, axes = _panel("images")
    for (name, count_I), color in zip(counts.items(), PALETTE, strict=False):
        times, images = np.unique(count_I, return_counts=True)
        dots = axes.scatter(np.maximum(times, 0.5), images, s=7, color=color, linewidths=0)
        telling(dots, f"{name}: {images[times == 0].sum():,} images are never found")
    axes.axvline(0.7, color=FAINT, linewidth=0.8)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([0.5, 1, 10, 100], ["0", "1", "10", "100"])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0.7, None)
    # Powers of ten as plain text: mathematical text is no text of the page.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("times among the first ten", fontsize=SMALL, color=MUTED)
    return figure


def _panel(upright: str) -> tuple[Figure, Axes]:
    figure = new_figure(*PANEL)
    axes = tidy(figure.subplots(), grid="y")
    axes.tick_params(labelsize=SMALL, length=2, colors=INK)
    axes.set_ylabel(upright, fontsize=SMALL, color=MUTED)
    return figure, axes
