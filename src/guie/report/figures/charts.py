"""Charts of a mix: how many images, in which split, in classes of which size."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from guie.report.figures.style import INK, MUTED, domain_colors, new_figure, tidy

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


def class_sizes(table: pd.DataFrame, bins: int = 20, columns: int = 5) -> Figure:
    """Histograms of images per class, a panel a domain, all over the same sizes."""
    colors = domain_colors(table["domain"])
    sizes = table.groupby("domain")["label"].value_counts()
    width = -(-sizes.max() // bins)  # whole sizes in a bin
    edges = np.arange(0, sizes.max() + width + 1, width) + 0.5
    rows = -(-len(colors) // columns)
    figure = new_figure(0.3 + 1.5 * rows)
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for axes, (domain, color) in zip(panels, colors.items(), strict=False):
        tidy(axes, grid="y").set_title(domain, loc="left", fontsize=9, color=INK)
        axes.hist(sizes[domain], bins=edges, color=color)
        axes.axvline(sizes[domain].median(), color=INK, linewidth=1, linestyle=":")
        axes.yaxis.get_major_locator().set_params(integer=True, nbins=4)
    for axes in panels[len(colors) :]:
        axes.set_visible(False)
    figure.supxlabel("images in a class (dotted: the median class)", fontsize=9, color=MUTED)
    figure.supylabel("classes", fontsize=9, color=MUTED)
    return figure


def _stacked(axes: Axes, counts: pd.DataFrame, title: str, colors: dict[str, str]) -> None:
    """Horizontal bars, a row a bar, its segments in the order of `colors`, its sum at the end."""
    tidy(axes, title, grid="x").spines["left"].set_visible(False)
    left = np.zeros(len(counts))
    for name in [name for name in colors if name in counts]:
        axes.barh(counts.index, counts[name], left=left, color=colors[name], label=name)
        left += counts[name].to_numpy()
    for y, total in enumerate(left):
        axes.text(total, y, f" {total:,.0f}", va="center", fontsize=8, color=MUTED)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
