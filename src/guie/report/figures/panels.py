"""Small panels side by side: of each domain the spectra of models, of each run the course of its domains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from guie.report.figures.style import MUTED, PALETTE, domain_colors, legible, new_figure, tidy

COLUMNS = 4
VAL = "val_r_at_1"


def spectra(variances: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """A panel a domain, in it a curve a model: variances along principal axes, largest first.

    Args:
        variances: by domain, by model, what `guie.evaluation.geometry.spectrum` returns.
    """
    models = list(dict.fromkeys(model for of in variances.values() for model in of))
    colors = dict(zip(models, PALETTE, strict=False))
    figure, panels = _panels(list(variances))
    for domain, axes in panels.items():
        axes.set_xlabel("principal axis", fontsize=9, color=MUTED)
        for model, variance_D in variances[domain].items():
            axes.plot(range(1, len(variance_D) + 1), variance_D, color=colors[model], linewidth=1.6)
    first = next(iter(panels.values()))
    first.set_ylim(bottom=0)  # of all panels: last, for it ends their scaling
    _legend(figure, first, colors)
    return figure


def val_courses(runs: Mapping[str, Sequence[dict[str, Any]]]) -> Figure:
    """A panel a run, in it a curve a domain: val R@1 over steps, a dot where it is highest.

    Domains that peak long before others overfit while the others still learn (Feng et al., figure 2).

    Args:
        runs: by name, what `guie.training.run.record.read_metrics` returns. Of runs without a
            validation the panel says so.
    """
    tables = {name: _validations(lines) for name, lines in runs.items()}
    domains = sorted({str(domain) for table in tables.values() for domain in table})
    colors = domain_colors(domains)
    figure, panels = _panels(list(tables))
    for name, axes in panels.items():
        axes.set_xlabel("step", fontsize=9, color=MUTED)
        if tables[name].empty:
            axes.text(0.5, 0.5, "no val split", transform=axes.transAxes, ha="center", color=MUTED)
        for domain, course in tables[name].items():
            color = colors[str(domain)]
            axes.plot(course.index, course, color=color, linewidth=1.4)
            axes.plot([course.idxmax()], [course.max()], "o", color=color, markersize=5)
    _legend(figure, next(iter(panels.values())), colors)
    return figure


def _validations(lines: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Val R@1: a row a step, a column a domain."""
    table = pd.DataFrame([line for line in lines if VAL in line])
    if table.empty:
        return table
    table = table.drop_duplicates("step", keep="last").set_index("step")
    of_domains = {name: name.partition("/")[2] for name in table if name.startswith(f"{VAL}/")}
    return table[list(of_domains)].rename(columns=of_domains)


def _panels(titles: list[str]) -> tuple[Figure, dict[str, Axes]]:
    """Four beside each other at most, all with one scale."""
    columns = min(COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = new_figure(0.7 + 2.2 * rows)
    grid = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    return figure, {
        title: tidy(axes, legible(title), grid="y")
        for title, axes in zip(titles, grid, strict=False)
    }


def _legend(figure: Figure, axes: Axes, colors: Mapping[str, str]) -> None:
    handles = [
        axes.plot([], [], color=color, label=legible(name))[0] for name, color in colors.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
