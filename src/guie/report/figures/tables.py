"""Numbers of rows and columns as colours or as lines."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from guie.report.figures.style import INK, MUTED, domain_colors, new_figure, tidy

LOGARITHMIC_FROM = 10  # times as large the last value of a setting is as the first


def heat_map(values: pd.DataFrame, rows: str, columns: str) -> Figure:
    """A table in colour about 0: blue below it, red above; which prompts a domain asks for.

    Args:
        values: any numbers.
        rows, columns: what they are, the axes' names.
    """
    figure = new_figure(1.2 + 0.3 * len(values))
    axes = figure.subplots()
    most = float(np.abs(values.to_numpy()).max()) or 1.0
    image = axes.imshow(values, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    axes.set_yticks(np.arange(len(values)), values.index, fontsize=9)
    axes.set_xticks(np.arange(len(values.columns)), values.columns, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(columns, fontsize=9, color=MUTED)
    axes.set_ylabel(rows, fontsize=9, color=MUTED)
    figure.colorbar(image, ax=axes, pad=0.01).ax.tick_params(labelsize=8)
    return figure


def lines_over(values: pd.DataFrame, metric: str, over: str, mean: bool = True) -> Figure:
    """A line a column over a setting, and their mean, bold: R@1 of domains over p, or over a size.

    Args:
        values: a row a value of the setting, numbers in rising order; a column a domain, or a method.
        metric, over: the axes' names. The setting's is logarithmic from LOGARITHMIC_FROM times on.
        mean: draw that of the columns.
    """
    figure = new_figure(4.2)
    axes = tidy(figure.subplots(), grid="y")
    colors = domain_colors(values.columns)
    for name, column in values.items():
        axes.plot(values.index, column, "o-", color=colors[str(name)], label=name, markersize=4)
    if mean:
        axes.plot(values.index, values.mean(axis=1), "o-", color=INK, linewidth=2.6, label="mean")
    if min(values.index) > 0 and max(values.index) >= LOGARITHMIC_FROM * min(values.index):
        axes.set_xscale("log", base=2)
    axes.set_xticks(values.index, [f"{value:g}" for value in values.index])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(over, fontsize=9, color=MUTED)
    axes.set_ylabel(metric, fontsize=9, color=MUTED)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=9)
    return figure
