"""Scores by domain, and which domains are taken for which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from guie.report.figures.style import FAINT, INK, MUTED, domain_colors, new_figure, tidy

SYSTEMS = ("#b9c0c4", "#3f90da", "#e76300", "#832db6", "#ffa90e", "#717581")
GROUP = 0.8  # of a domain's height is bars


def domain_bars(scores: pd.DataFrame, metric: str) -> Figure:
    """A group of bars a domain, a bar a system, their means as dotted lines.

    Args:
        scores: from 0 to 1; a row a domain, a column a system. A single system's bars take the
            domains' colours.
        metric: what is shown, the axis' name.
    """
    systems = len(scores.columns)
    figure = new_figure(0.9 + max(0.3, 0.2 * systems) * len(scores))
    axes = tidy(figure.subplots(), grid="x")
    for i, (system, values) in enumerate(scores.items()):
        color = INK if systems == 1 else SYSTEMS[i]
        bars = scores.index.map(domain_colors(scores.index)) if systems == 1 else color
        y = np.arange(len(scores)) + (i - (systems - 1) / 2) * GROUP / systems
        label = f"{system}: mean {values.mean():.3f}"
        drawn = axes.barh(y, values, height=0.92 * GROUP / systems, color=bars, label=label)
        axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8, color=INK)
        axes.axvline(values.mean(), color=color, linestyle=":", linewidth=1.3, zorder=0)
    axes.set_yticks(np.arange(len(scores)), scores.index)
    axes.set(xlim=(0, 1.06), ylim=(len(scores) - 0.45, -0.55))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(metric, fontsize=9, color=MUTED)
    if systems == 1:
        axes.set_title(f"mean {scores.mean().iloc[0]:.3f}", fontsize=9, color=MUTED, loc="right")
    else:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=9)
    return figure


def domain_intervals(reports: Mapping[str, Mapping[str, Any]], key: str, metric: str) -> Figure:
    """How sure each domain's score is: a dot a system with its interval as a line, the mean on top.

    Args:
        reports: by system, as `validate.py` writes them, intervals included.
        key: of the metric, `r_at_1` or another.
        metric: what is shown, the axis' name.
    """
    names = ["mean", *next(iter(reports.values()))["domains"]]
    figure = new_figure(0.9 + max(0.25, 0.16 * len(reports)) * len(names))
    axes = tidy(figure.subplots(), grid="x")
    for i, (system, report) in enumerate(reports.items()):
        values = {"mean": report["mean"], **report["domains"]}
        bounds = {"mean": report["intervals"]["mean"], **report["intervals"]["domains"]}
        for row, name in enumerate(names):
            value = values[name].get(key)
            if value is None:
                continue
            y = row + (i - (len(reports) - 1) / 2) * GROUP / len(reports)
            low, high = bounds.get(name, {}).get(key) or (value, value)
            axes.plot([low, high], [y, y], color=SYSTEMS[i], linewidth=2.2, alpha=0.6)
            axes.plot(
                value, y, "o", color=SYSTEMS[i], markersize=5, label=system if not row else None
            )
    axes.set_yticks(np.arange(len(names)), names)
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.set(xlim=(0, 1.02), ylim=(len(names) - 0.5, -0.6))
    axes.tick_params(axis="y", length=0)
    level = next(iter(reports.values()))["intervals"]["level"]
    axes.set_xlabel(f"{metric}, with {level:.0%} intervals over classes", fontsize=9, color=MUTED)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=9)
    return figure


def confusion(shares: pd.DataFrame) -> Figure:
    """A table in colour: for queries of a domain (row), where their neighbours lie (column).

    Args:
        shares: rows sum to 1; rows and columns are domains in the same order.
    """
    figure = new_figure(0.8 + 0.42 * len(shares), width=2.2 + 0.62 * len(shares))
    axes = figure.subplots()
    strayed = shares.to_numpy(copy=True)
    np.fill_diagonal(strayed, np.nan)  # staying at home would drown the rest
    # By the root, so that small shares show; the range's dark end would hide the numbers.
    axes.imshow(np.sqrt(strayed), cmap="OrRd", vmin=0, vmax=1.4, aspect="auto")
    for (row, column), share in np.ndenumerate(shares.to_numpy()):
        text = "" if share == 0 else f"{100 * share:.0f}" if share >= 0.01 else "<1"
        style: dict[str, Any] = (
            {"color": MUTED} if row == column else {"color": INK, "weight": "bold"}
        )
        axes.text(column, row, text, ha="center", va="center", fontsize=8, **style)
    places = np.arange(len(shares))
    axes.set_xticks(places, shares.columns, rotation=35, ha="left", fontsize=9)
    axes.set_yticks(places, shares.index, fontsize=9)
    axes.tick_params(which="both", length=0, labeltop=True, labelbottom=False)
    axes.set_xticks(places[1:] - 0.5, minor=True)
    axes.set_yticks(places[1:] - 0.5, minor=True)
    axes.grid(which="minor", color=FAINT, linewidth=0.8)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("domain of the query", fontsize=9, color=MUTED)
    axes.set_xlabel("domain of the nearest neighbour, % of queries", fontsize=9, color=MUTED)
    return figure
