"""Figures of scores: by domain, against a leaderboard, over seeds, heat maps, training curves."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from guie.report.figures import style

SYSTEMS = ("#b9c0c4", "#3f90da", "#e76300", "#832db6", "#ffa90e", "#717581")
GROUP = 0.8  # share of a domain's height that its bars fill
ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 4}
ABOVE |= {"frameon": False, "fontsize": 9}  # a legend above the panel
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False}
TICKS = 4  # of a panel; more labels would overlap
LOGARITHMIC_FROM = 10  # ratio of the last to the first value that makes an axis logarithmic
# Parts of other tasks take the remaining colours of the palette, in the order of the log.
LR_COLORS = {"lr_backbone": "#3f90da", "lr_head": "#e76300", "lr_classes": "#832db6"}
OTHER_COLORS = [color for color in style.PALETTE if color not in LR_COLORS.values()]
PAD = 16  # above a panel, for the names of the stages


def domain_bars(scores: pd.DataFrame, metric: str) -> Figure:
    """Draw a group of bars for each domain, one bar per system, with means as dotted lines.

    `scores` are from 0 to 1; rows are domains, columns are systems. The bars of a single system take the
    domains' colours.
    """
    systems = len(scores.columns)
    figure = style.new_figure(0.9 + max(0.3, 0.2 * systems) * len(scores))
    axes = style.tidy(figure.subplots(), grid="x")
    for i, (system, values) in enumerate(scores.items()):
        color = style.INK if systems == 1 else SYSTEMS[i]
        bars = scores.index.map(style.domain_colors(scores.index)) if systems == 1 else color
        y = np.arange(len(scores)) + (i - (systems - 1) / 2) * GROUP / systems
        label = f"{system}: mean {values.mean():.3f}"
        drawn = axes.barh(y, values, height=0.92 * GROUP / systems, color=bars, label=label)
        axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8, color=style.INK)
        axes.axvline(values.mean(), color=color, linestyle=":", linewidth=1.3, zorder=0)
    style.name_rows(axes, scores.index)
    axes.set(xlim=(0, 1.06), ylim=(len(scores) - 0.45, -0.55))
    style.name_axes(axes, metric)
    if systems == 1:
        mean = f"mean {scores.mean().iloc[0]:.3f}"
        axes.set_title(mean, fontsize=9, color=style.MUTED, loc="right")
    else:
        axes.legend(**ABOVE)
    return figure


def domain_intervals(reports: Mapping[str, Mapping[str, Any]], key: str, metric: str) -> Figure:
    """Draw each domain's score and interval, one dot and line per system, with the mean on top.

    Args:
        reports: by system, as `validate.py` writes them, with intervals.
        key, metric: key of the metric in the reports, such as `r_at_1`, and its name.
    """
    first = next(iter(reports.values()))
    names = ["mean", *first["domains"]]
    figure = style.new_figure(0.9 + max(0.25, 0.16 * len(reports)) * len(names))
    axes = style.tidy(figure.subplots(), grid="x")
    for i, (system, report) in enumerate(reports.items()):
        values = {"mean": report["mean"], **report["domains"]}
        intervals = {"mean": report["intervals"]["mean"], **report["intervals"]["domains"]}
        for row, name in enumerate(names):
            value = values[name].get(key)
            if value is None:
                continue
            y = row + (i - (len(reports) - 1) / 2) * GROUP / len(reports)
            ends = intervals.get(name, {}).get(key) or (value, value)
            axes.plot(ends, [y, y], color=SYSTEMS[i], linewidth=2.2, alpha=0.6)
            label = system if row == 0 else None
            axes.plot(value, y, "o", color=SYSTEMS[i], markersize=5, label=label)
    style.name_rows(axes, names)
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.set(xlim=(0, 1.02), ylim=(len(names) - 0.5, -0.6))
    level = first["intervals"]["level"]
    style.name_axes(axes, f"{metric}, with {level:.0%} intervals over classes")
    axes.legend(**ABOVE)
    return figure


def confusion(shares: pd.DataFrame) -> Figure:
    """Draw a heat map of the domains of nearest neighbours (columns) by query domain (rows).

    Rows of `shares` sum to 1; rows and columns are domains in the same order.
    """
    figure = style.new_figure(0.8 + 0.42 * len(shares), width=2.2 + 0.62 * len(shares))
    axes = figure.subplots()
    others = shares.to_numpy(copy=True)
    np.fill_diagonal(others, np.nan)  # the large diagonal would hide the rest
    # The square root makes small shares visible; vmax avoids dark cells, which hide the numbers.
    axes.imshow(np.sqrt(others), cmap="OrRd", vmin=0, vmax=1.4, aspect="auto")
    for (row, column), share in np.ndenumerate(shares.to_numpy()):
        text = "" if share == 0 else f"{100 * share:.0f}" if share >= 0.01 else "<1"
        color, weight = (style.MUTED, "normal") if row == column else (style.INK, "bold")
        centre: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
        axes.text(column, row, text, color=color, weight=weight, **centre)
    places = np.arange(len(shares))
    axes.set_xticks(places, shares.columns, rotation=35, ha="left", fontsize=9)
    axes.set_yticks(places, shares.index, fontsize=9)
    axes.tick_params(which="both", length=0, labeltop=True, labelbottom=False)
    axes.set_xticks(places[1:] - 0.5, minor=True)
    axes.set_yticks(places[1:] - 0.5, minor=True)
    axes.grid(which="minor", color=style.FAINT, linewidth=0.8)
    axes.spines[:].set_visible(False)
    style.name_axes(axes, "domain of the nearest neighbour, % of queries", "domain of the query")
    return figure


def local_against_leaderboard(points: Sequence[tuple[str, float, float]]) -> Figure:
    """Draw a dot per submission (name, local score, leaderboard score), and the line of equal scores."""
    figure = style.new_figure(5.0, 5.5)
    axes = style.tidy(figure.subplots(), "Does the local score predict the leaderboard score?")
    scores = [score for _, *pair in points for score in pair]
    ends = [min(scores) - 0.02, max(scores) + 0.02]
    axes.plot(ends, ends, color=style.FAINT, zorder=0)
    offset: dict[str, Any] = {"xytext": (5, -3), "textcoords": "offset points"}
    for name, local, public in points:
        axes.scatter(local, public, color=style.ACCENT, s=24)
        axes.annotate(style.legible(name), (local, public), **offset, fontsize=8, color=style.INK)
    style.name_axes(axes, "local mMP@5", "public leaderboard")
    return figure


def seed_dots(values: dict[str, pd.DataFrame], baseline: str | None = None) -> Figure:
    """Draw one panel per score, with a line of dots for each row; rows without a run say so.

    Args:
        values: by score, a table of the same rows whose columns are seeds; NaN for a missing run.
        baseline: the row whose mean is drawn as a vertical line.
    """
    rows = next(iter(values.values())).index
    figure = style.new_figure(0.8 + 0.22 * max(len(rows), 3))
    panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
    for axes, (name, table) in zip(panels, values.items(), strict=True):
        style.tidy(axes, name, grid="x").tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(TICKS))
        if baseline is not None and table.loc[baseline].notna().any():
            axes.axvline(table.loc[baseline].mean(), color=style.MUTED, linewidth=1, linestyle=":")
        for y, (row, of_seeds) in enumerate(table.iterrows()):
            scores = of_seeds.dropna()
            if scores.empty:
                words: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
                axes.text(0.01, y, "no run", fontsize=8, color=style.MUTED, **words)
                continue
            color, mean = style.INK if row == baseline else style.ACCENT, scores.mean()
            if len(scores) > 1:
                axes.scatter(scores, [y] * len(scores), s=10, color=color, alpha=0.45, linewidths=0)
                axes.hlines(y, mean - scores.std(), mean + scores.std(), color=color)
            marker = "D" if row == baseline else "o"
            dot = axes.scatter([mean], [y], s=30, color=color, marker=marker)
            seeds = ", ".join(f"{seed}: {value:.3f}" for seed, value in scores.items())
            style.tooltip(dot, f"{row}: {mean:.3f} ({seeds})")
    panels[0].set_yticks(range(len(rows)), [style.legible(row, 44) for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    return figure


def heat_map(values: pd.DataFrame, rows: str, columns: str) -> Figure:
    """Draw a heat map centred at 0, blue below and red above; `rows` and `columns` name the axes."""
    figure = style.new_figure(1.2 + 0.3 * len(values))
    axes = figure.subplots()
    most = float(np.abs(values.to_numpy()).max()) or 1.0
    image = axes.imshow(values, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    axes.set_yticks(np.arange(len(values)), values.index, fontsize=9)
    axes.set_xticks(np.arange(len(values.columns)), values.columns, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    style.name_axes(axes, columns, rows)
    figure.colorbar(image, ax=axes, pad=0.01).ax.tick_params(labelsize=8)
    return figure


def lines_over(values: pd.DataFrame, metric: str, over: str, mean: bool = True) -> Figure:
    """Draw a line for each column over a setting, and optionally their mean in bold.

    The rows of `values` are values of the setting, ascending numbers; columns are domains or methods. The
    setting's axis is logarithmic if its last value is at least LOGARITHMIC_FROM times the first.
    """
    figure = style.new_figure(4.2)
    axes = style.tidy(figure.subplots(), grid="y")
    colors = style.domain_colors(values.columns)
    for name, column in values.items():
        axes.plot(values.index, column, "o-", color=colors[str(name)], label=name, markersize=4)
    if mean:
        means = values.mean(axis=1)
        axes.plot(values.index, means, "o-", color=style.INK, linewidth=2.6, label="mean")
    if min(values.index) > 0 and max(values.index) >= LOGARITHMIC_FROM * min(values.index):
        axes.set_xscale("log", base=2)
    axes.set_xticks(values.index, [f"{value:g}" for value in values.index])
    axes.set_xticks([], minor=True)
    style.name_axes(axes, over, metric)
    axes.legend(**BESIDE, fontsize=9)
    return figure


def training_curves(lines: Sequence[dict[str, Any]]) -> Figure:
    """Draw loss, training accuracy, learning rates and val R@1 over steps, divided into stages.

    `lines` are from `guie.training.run_folder.read_metrics`: step and stage in every line; loss, accuracy and
    lr_<part> in training lines; val_r_at_1 and val_r_at_1/<domain> in validation lines.
    """
    table = pd.DataFrame(lines).set_index("step")
    figure = style.new_figure(5.4)
    (loss, accuracy), (rates, val) = figure.subplots(2, 2, sharex=True)
    titles = ("training loss", "training accuracy", "learning rates", "R@1 on val, merged index")
    for axes, title in zip((loss, accuracy, rates, val), titles, strict=True):
        style.tidy(axes, title, grid="y", pad=PAD)
    _line(loss, table["loss"], style.INK)
    _line(accuracy, table["accuracy"], style.INK)
    accuracy.set_ylim(0, 1)
    rates.set_yscale("log")
    keys = [key for key in table if key.startswith("lr_") and (table[key] > 0).any()]
    colors = dict(zip([key for key in keys if key not in LR_COLORS], cycle(OTHER_COLORS)))
    for key, dash in zip(keys, cycle(style.DASHES)):  # several parts often have the same rate
        rate, color = table[key], (colors | LR_COLORS)[key]
        _line(rates, rate.where(rate > 0), color, label=key.removeprefix("lr_"), linestyle=dash)
    top = table[keys].max().max()
    # Else the last steps of a cosine schedule would compress the rest
    rates.set_ylim(1e-4 * top, 2 * top)
    rates.legend(fontsize=8, frameon=False)
    domains = [column.partition("/")[2] for column in table if column.startswith(f"{style.VAL}/")]
    for domain, color in style.domain_colors(domains).items():
        _line(val, table[f"{style.VAL}/{domain}"], color, width=1, label=domain)
    if style.VAL in table:
        _line(val, table[style.VAL], style.INK, width=2.6, label="mean")
        val.set_ylim(0, 1)
        val.legend(**BESIDE, fontsize=7)
    else:
        style.write_inside(val, "no val split")
    for axes in (rates, val):
        style.name_axes(axes, "step")
    spans = table["stage"].reset_index().groupby("stage", sort=False)["step"].agg(["min", "max"])
    words: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8, "color": style.MUTED}
    for axes in (loss, accuracy, rates, val) if len(spans) > 1 else ():
        for name, span in spans.iterrows():
            axes.axvline(span["max"], color=style.MUTED, linewidth=1, linestyle=":")
            middle = (span["min"] + span["max"]) / 2
            axes.text(middle, 1.01, str(name), transform=axes.get_xaxis_transform(), **words)
    return figure


def _line(axes: Axes, series: pd.Series, color: str, width: float = 1.6, **kwargs: Any) -> None:
    """Draw a line through the logged values, with markers if there are few."""
    series = series.dropna()
    marker = "o" if len(series) < 30 else None
    axes.plot(series, color=color, linewidth=width, marker=marker, markersize=3, **kwargs)
