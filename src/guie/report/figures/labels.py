"""What a CLIP's labels are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from guie.report.figures.style import ACCENT, INK, MUTED, new_figure, tidy


def calibration(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The share that is right of those that are kept, over the share that is kept.

    Args:
        rows: of `guie.curation.labels.calibration.thinned`: shares from 0 to 1 as coverage,
            precision and at_least, below which precision is not with 95 % certainty.
    """
    figure = new_figure(2.6, width=6.0)
    axes = tidy(figure.subplots(), grid="y")
    coverage = [row["coverage"] for row in rows]
    for key, style, name in (("precision", "-", "measured"), ("at_least", "--", "at least")):
        line: dict[str, Any] = {
            "linestyle": style,
            "marker": "o",
            "markersize": 3,
            "linewidth": 1.6,
        }
        axes.plot(coverage, [row[key] for row in rows], color=ACCENT, label=name, **line)
    axes.set(xlim=(0, 1.01), ylim=(0, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("kept", fontsize=9, color=MUTED)
    axes.set_ylabel("right", fontsize=9, color=MUTED)
    axes.legend(loc="lower left", fontsize=9, frameon=False, labelcolor=INK)
    return figure
