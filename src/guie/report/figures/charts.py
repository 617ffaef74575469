"""Charts of a mix: how many images, in which split, left by which rule."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from guie.report.figures.style import (
    ACCENT,
    INK,
    LOST,
    MUTED,
    WIDTH,
    legible,
    new_figure,
    tidy,
)

SPLIT_COLORS = {"train": "#3f90da", "val": "#92dadd", "test": "#e76300"}
DROPPED = ("#94a4a2", "#b9ac70", "#717581", "#a96b59", "#832db6", "#ffa90e", "#bd1f01")


def split_bars(table: pd.DataFrame) -> Figure:
    """Images and classes of each domain, by split."""
    labels = table.assign(label=table["label"].str.split("|")).explode("label")
    groups = ["domain", "split"]
    counts = {
        "images": table.groupby(groups)["image_path"].nunique(),
        "classes": labels.groupby(groups)["label"].nunique(),
    }
    domains = table["domain"].nunique()
    figure = new_figure(0.9 + 0.25 * domains)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, (what, count) in zip((left, right), counts.items(), strict=True):
        _stacked(axes, count.unstack(fill_value=0), what, SPLIT_COLORS)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  frameon=False, fontsize=9)  # fmt: skip
    return figure


def funnel(counts: pd.DataFrame) -> Figure:
    """What became of the images of each domain: one bar, a segment a split or a rule.

    Args:
        counts: images; a row a domain, a column a split or a rule that drops, in bar order.
    """
    rules = [column for column in counts if column not in SPLIT_COLORS]
    colors = SPLIT_COLORS | dict(zip(rules, cycle(DROPPED), strict=False))
    figure = new_figure(0.9 + 0.25 * len(counts))
    axes = figure.subplots()
    _stacked(axes, counts, "images", colors)
    figure.legend(loc="outside lower center", ncols=len(counts.columns), frameon=False, fontsize=9)
    return figure


def stages(left: pd.DataFrame) -> Figure:
    """What each rule left of everything: one bar a rule, its numbers beside it.

    Args:
        left: name, images, classes and lost (images that the rule took), a row a rule, in order.
    """
    height = 0.2 + 0.3 * max(len(left), 1)
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0.19, 0.05 / height, 0.49, 1 - 0.1 / height))
    axes.set(xlim=(0, max(1, left["images"].max())), ylim=(max(len(left), 1) - 0.5, -0.5))
    axes.barh(range(len(left)), left["images"], color=ACCENT, height=0.78)
    axes.set_yticks(range(len(left)), [legible(name, 26) for name in left["name"]], fontsize=10)
    axes.tick_params(axis="y", length=0, pad=8, labelcolor=INK)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    for y, stage in enumerate(left.itertuples()):
        beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center_baseline"}
        axes.text(1.17, y, f"{stage.images:,}", ha="right", weight="bold", color=INK, **beside)
        axes.text(1.19, y, f"in {stage.classes:,} classes", fontsize=9, color=MUTED, **beside)
        if stage.lost:
            axes.text(1.64, y, f"−{stage.lost:,}", ha="right", fontsize=9, color=LOST, **beside)
    return figure


def _stacked(axes: Axes, counts: pd.DataFrame, title: str, colors: dict[str, str]) -> None:
    """Horizontal bars, a row a bar, its segments in the order of `colors`, its sum at the end."""
    tidy(axes, title, grid="x").spines["left"].set_visible(False)
    left = np.zeros(len(counts))
    places = range(len(counts))
    for name in [name for name in colors if name in counts]:
        axes.barh(places, counts[name], left=left, color=colors[name], label=name)
        left += counts[name].to_numpy()
    axes.set_yticks(places, [legible(name) for name in counts.index])
    for y, total in enumerate(left):
        axes.text(total, y, f" {total:,.0f}", va="center", fontsize=8, color=MUTED)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
