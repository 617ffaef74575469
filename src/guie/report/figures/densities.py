"""How values are spread, as smooth curves: of pairs, of ratios, of nearest neighbours."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.mlab import GaussianKDE

from guie.report.figures.style import INK, MUTED, PALETTE, legible, new_figure, tidy

DASHES = ("-", "--", ":", "-.")
POINTS = 300  # of a curve


def densities(values: pd.DataFrame, name: str, mark: float | None = None) -> Figure:
    """A panel a `panel`, in it a curve for each `line` (its colour) and `dash` (its stroke).

    Estimated by Gaussian kernels (Scott's rule): a little weight lies beyond the least and the most.

    Args:
        values: a row a value: columns `value`, `panel`, `line`, `dash`; NaN is left out.
        name: of the horizontal axis.
        mark: an upright line there in each panel, as 1 is of a ratio.
    """
    values = values.dropna(subset=["value"])
    panels = list(dict.fromkeys(values["panel"]))
    colors = dict(zip(dict.fromkeys(values["line"]), PALETTE, strict=False))
    dashes = dict(zip(dict.fromkeys(values["dash"]), DASHES, strict=False))
    figure = new_figure(3.4)
    grid = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    span = np.linspace(values["value"].min(), values["value"].max(), POINTS)
    for axes, panel in zip(grid, panels, strict=True):
        tidy(axes, legible(str(panel)), grid="x").set_yticks([])
        axes.set_xlabel(name, fontsize=9, color=MUTED)
        of_panel = values[values["panel"] == panel]
        for (line, dash), of_curve in of_panel.groupby(["line", "dash"], sort=False):
            _curve(axes, span, of_curve["value"].to_numpy(), color=colors[line], dash=dashes[dash])
        if mark is not None:
            axes.axvline(mark, color=MUTED, linewidth=1, linestyle=":")
    grid[0].set_ylim(bottom=0)  # the height is of all panels: last, for it ends their scaling
    _legend(figure, grid[0], colors, dashes)
    return figure


def _curve(axes: Axes, span: np.ndarray, values: np.ndarray, *, color: str, dash: str) -> None:
    if len(values) < 2 or np.ptp(values) == 0:  # no width: a kernel has none either
        axes.axvline(values[0], color=color, linestyle=dash)
        return
    axes.plot(span, GaussianKDE(values)(span), color=color, linestyle=dash, linewidth=1.8)


def _legend(figure: Figure, axes: Axes, colors: dict[str, str], dashes: dict[str, str]) -> None:
    """Colours, then strokes; what is the same everywhere is not told."""
    handles = []
    if len(colors) > 1 or len(dashes) == 1:
        handles += [
            axes.plot([], [], color=c, label=legible(str(line)))[0] for line, c in colors.items()
        ]
    if len(dashes) > 1:
        handles += [
            axes.plot([], [], color=INK, linestyle=stroke, label=legible(str(dash)))[0]
            for dash, stroke in dashes.items()
        ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
