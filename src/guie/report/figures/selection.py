"""The course of a greedy selection."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from guie.report.figures.style import IGNORED, INK, MUTED, RIGHT, WRONG, new_figure, tidy


def selection_curve(table: pd.DataFrame, metric: str = "R@1 on val") -> Figure:
    """Score after each step, and what the changes turned down would have gained.

    Args:
        table: what `guie.curation.selection.earned.earned` returns.
        metric: what was raised, for the axes.
    """
    taken, refused = table[table["step"].notna()], table[table["step"].isna()]
    figure = new_figure(max(2.4, 0.9 + 0.25 * max(len(taken), len(refused))))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    tidy(left, f"{metric}, step by step", grid="y")
    place, score = range(len(taken)), taken["score"].astype(float)
    left.errorbar(place, score, yerr=taken["standard_error"].astype(float), color=INK, marker="o",
                  markersize=4, linewidth=1.6, ecolor=MUTED, capsize=3)  # fmt: skip
    left.set_xticks(place, taken["change"], rotation=30, ha="right", fontsize=8)
    tidy(right, "gain of what was turned down", grid="x")
    refused = refused.sort_values("gain")
    colors = [RIGHT if gain > 0 else WRONG if gain < 0 else IGNORED for gain in refused["gain"]]
    right.barh(refused["change"], refused["gain"], color=colors, height=0.7)
    right.axvline(0, color=MUTED, linewidth=1)
    right.tick_params(axis="y", labelsize=8)
    right.xaxis.get_major_locator().set_params(nbins=4)
    if refused.empty:
        right.text(0.5, 0.5, "nothing", transform=right.transAxes, ha="center", color=MUTED)
    return figure
