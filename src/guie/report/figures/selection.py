"""The course of a greedy selection."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from guie.report.figures.style import (
    IGNORED,
    INK,
    MUTED,
    RIGHT,
    WRONG,
    legible,
    new_figure,
    telling,
    tidy,
)

NAMED = 16  # steps; the names of more would lie on each other
REFUSED = 20  # changes turned down, those that would have gained most


def selection_curve(table: pd.DataFrame, metric: str = "R@1 on val") -> Figure:
    """Score after each step, and what the changes turned down would have gained.

    Args:
        table: what `guie.curation.selection.earned.earned` returns.
        metric: what was raised, for the axes.
    """
    taken, refused = table[table["step"].notna()], table[table["step"].isna()]
    shown = refused.sort_values("gain", kind="stable").tail(REFUSED)
    figure = new_figure(max(3.2, 0.9 + 0.25 * len(shown)))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    _steps(tidy(left, f"{metric}, step by step", grid="y"), taken)
    _gains(tidy(right, "gain of what was turned down", grid="x"), shown)
    if len(shown) < len(refused):
        right.set_xlabel(f"the best {REFUSED} of {len(refused):,}", fontsize=9, color=MUTED)
    return figure


def _steps(axes: Axes, taken: pd.DataFrame) -> None:
    """A line through the scores, with one standard error of each step's gain."""
    score, error = taken["score"].astype(float), taken["standard_error"].astype(float)
    axes.errorbar(range(1, len(taken) + 1), score, yerr=error, color=INK, marker="o",
                  markersize=4, linewidth=1.6, ecolor=MUTED, capsize=3)  # fmt: skip
    axes.set_xlim(0.5, max(len(taken), 1) + 0.5)
    if taken.empty:
        _nothing(axes)
    elif len(taken) <= NAMED:
        names = [legible(change, 24) for change in taken["change"]]
        axes.set_xticks(range(1, len(taken) + 1), names, fontsize=9, rotation=30, ha="right",
                        rotation_mode="anchor")  # fmt: skip
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("step", fontsize=9, color=MUTED)


def _gains(axes: Axes, refused: pd.DataFrame) -> None:
    """A bar a change, the gain written where the mouse rests."""
    gains = refused["gain"].tolist()
    colors = [RIGHT if gain > 0 else WRONG if gain < 0 else IGNORED for gain in gains]
    bars = axes.barh(range(len(gains)), gains, color=colors, height=0.7)
    for bar, change, gain in zip(bars, refused["change"], gains, strict=True):
        telling(bar, f"{change}: {gain:+.4f}")
    axes.set_yticks(range(len(gains)), [legible(change, 24) for change in refused["change"]])
    axes.set_ylim(-0.6, max(len(gains), 1) - 0.4)
    axes.axvline(0, color=MUTED, linewidth=1)
    locator = axes.xaxis.get_major_locator()
    assert isinstance(locator, MaxNLocator)  # of every linear axis
    locator.set_params(nbins=4)
    if not gains:
        _nothing(axes)


def _nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "nothing", transform=axes.transAxes, ha="center", color=MUTED)
