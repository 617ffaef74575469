"""Runs of several seeds: a dot each, their mean and deviation, against a baseline."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from guie.report.figures.style import ACCENT, INK, MUTED, legible, new_figure, telling, tidy

TICKS = 4  # of a panel; the numbers of more would lie on each other


def seed_dots(values: dict[str, pd.DataFrame], baseline: str | None = None) -> Figure:
    """A line a row, a panel a score; rows without one are there, and say so.

    Args:
        values: by what is measured: a row a row, the uppermost first, a column a seed; NaN where
            there is no run. The same rows in each.
        baseline: the row whose mean is drawn through all others.
    """
    rows = next(iter(values.values())).index
    figure = new_figure(0.8 + 0.22 * max(len(rows), 3))
    panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
    for axes, (name, table) in zip(panels, values.items(), strict=True):
        _panel(tidy(axes, name, grid="x"), table, baseline)
    first = panels[0]
    first.set_yticks(range(len(rows)), [legible(row, 44) for row in rows])
    first.set_ylim(len(rows) - 0.4, -0.6)
    return figure


def _panel(axes: Axes, table: pd.DataFrame, baseline: str | None) -> None:
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    if baseline is not None and table.loc[baseline].notna().any():
        axes.axvline(table.loc[baseline].mean(), color=MUTED, linewidth=1, linestyle=":")
    for y, (row, of_seeds) in enumerate(table.iterrows()):
        found = of_seeds.dropna()
        if found.empty:
            beside = axes.get_yaxis_transform()
            axes.text(0.01, y, "no run", transform=beside, va="center", fontsize=8, color=MUTED)
            continue
        color = INK if row == baseline else ACCENT
        if len(found) > 1:
            axes.scatter(found, [y] * len(found), s=10, color=color, alpha=0.45, linewidths=0)
            axes.hlines(y, found.mean() - found.std(), found.mean() + found.std(), color=color)
        mean = axes.scatter(
            [found.mean()], [y], s=30, color=color, marker="D" if row == baseline else "o"
        )
        seeds = ", ".join(f"{seed}: {value:.3f}" for seed, value in found.items())
        telling(mean, f"{row}: {found.mean():.3f} ({seeds})")
