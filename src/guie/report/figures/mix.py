"""Figures of a mix: images by domain, class sizes, sheets of pictures, selection, pseudo-labels."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from guie.report.figures import style

SPLIT_COLORS = {"train": "#3f90da", "val": "#92dadd", "test": "#e76300"}
DROPPED = ("#94a4a2", "#b9ac70", "#717581", "#a96b59", "#832db6", "#ffa90e", "#bd1f01")
PANEL = (2.2, 1.15)  # inches: a histogram of class sizes
COLUMNS = 4  # histograms in a row
TICKS = 9  # size labels that fit below a histogram
SINGLE = 16  # largest class size for which each size has its own bin
GAP = 0.22  # between classes, in thumbnails
MARGIN = 0.4  # for a row's heading
NOTED = 1.55  # a row with notes
NOTE_CHARS = 17  # as wide as a thumbnail
STEPS_NAMED = 16  # more names would overlap
REJECTED_SHOWN = 20  # those with the largest gains


def split_bars(table: pd.DataFrame) -> Figure:
    """Draw the images and classes of each domain as bars, stacked by split."""
    labels = table.assign(label=table["label"].str.split("|")).explode("label")
    groups = ["domain", "split"]
    counts = {
        "images": table.groupby(groups)["image_path"].nunique(),
        "classes": labels.groupby(groups)["label"].nunique(),
    }
    return _stacked({k: count.unstack(fill_value=0) for k, count in counts.items()}, SPLIT_COLORS)


def funnel(counts: pd.DataFrame) -> Figure:
    """Draw one bar per domain, with a segment for each split and for each rule that dropped images.

    `counts` are images; rows are domains, columns are splits and dropping rules, in bar order.
    """
    rules = [column for column in counts if column not in SPLIT_COLORS]
    return _stacked({"images": counts}, SPLIT_COLORS | dict(zip(rules, cycle(DROPPED))))


def _stacked(tables: Mapping[str, pd.DataFrame], colors: Mapping[str, str]) -> Figure:
    """Draw a panel per table: a bar for each row, segments in the order of `colors`, sums at the ends."""
    first = next(iter(tables.values()))
    figure = style.new_figure(0.9 + 0.25 * len(first))
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, (title, counts) in zip(panels, tables.items(), strict=True):
        style.tidy(axes, title, grid="x").spines["left"].set_visible(False)
        left = np.zeros(len(counts))
        for name in [name for name in colors if name in counts]:
            axes.barh(range(len(counts)), counts[name], left=left, color=colors[name], label=name)
            left += counts[name].to_numpy()
        style.name_rows(axes, map(style.legible, counts.index))
        for y, total in enumerate(left):
            axes.text(total, y, f" {total:,.0f}", va="center", fontsize=8, color=style.MUTED)
        axes.margins(x=0.1)
    panels[0].invert_yaxis()
    named = panels[0].get_legend_handles_labels()
    figure.legend(*named, **style.LEGEND_BELOW, ncols=len(first.columns))
    return figure


def stages(left: pd.DataFrame) -> Figure:
    """Draw the images left after each rule: one bar per rule, with its numbers at the right.

    A row of `left` has name, images, classes and lost (images that the rule dropped).
    """
    height = 0.2 + 0.3 * len(left)
    figure = Figure(figsize=(style.WIDTH, height))
    axes = figure.add_axes((0.19, 0.05 / height, 0.49, 1 - 0.1 / height))
    axes.set(xlim=(0, max(1, left["images"].max())), ylim=(len(left) - 0.5, -0.5))
    axes.barh(range(len(left)), left["images"], color=style.ACCENT, height=0.78)
    names = [style.legible(name, 26) for name in left["name"]]
    axes.set_yticks(range(len(left)), names, fontsize=10)
    axes.tick_params(axis="y", length=0, pad=8, labelcolor=style.INK)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    for y, stage in enumerate(left.itertuples()):
        right: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center_baseline"}
        axes.text(1.17, y, f"{stage.images:,}", ha="right", weight="bold", color=style.INK, **right)
        right["fontsize"] = 9
        axes.text(1.19, y, f"in {stage.classes:,} classes", color=style.MUTED, **right)
        if stage.lost:
            axes.text(1.64, y, f"−{stage.lost:,}", ha="right", color=style.LOST, **right)
    return figure


# Domain, its class sizes, and a note: number of classes and median size, before and after
Histogram = tuple[str, pd.DataFrame, str]


def histograms(before: pd.Series, after: pd.Series) -> list[Histogram]:
    """Count the classes of each domain by size, all in the bins 1, 2, 3, ..., or 1, 2, 3–4, 5–8, ...

    Both series are from `guie.report.pages.class_sizes`: images of each class, by domain and label. A row of
    a table is a bin; its columns are name, largest (size in the bin), before and after.
    """
    largest = max([1, *before, *after])
    ends = np.arange(1, largest + 1) if largest <= SINGLE else 2 ** np.arange(63)
    ends = ends[: np.searchsorted(ends, largest) + 1]
    names = [
        f"{end:,}" if start == end else f"{start:,}–{end:,}"
        for start, end in zip([1, *(ends[:-1] + 1)], ends, strict=True)
    ]
    found = []
    for domain, sizes in pd.DataFrame({"before": before, "after": after}).groupby("domain"):
        bins = pd.DataFrame({"name": names, "largest": ends})
        for side in sizes:
            places = np.searchsorted(ends, sizes[side].dropna())
            bins[side] = np.bincount(places, minlength=len(ends))
        counts = dict.fromkeys(f"{count:,}" for count in sizes.count())
        medians = dict.fromkeys(f"{median:g}" for median in sizes.median().fillna(0))
        note = f"{' → '.join(counts)} classes, median {' → '.join(medians)}"
        found.append((str(domain), bins, note))
    return found


def size_histogram(bins: pd.DataFrame, color: str) -> Figure:
    """Draw one domain's class sizes, grey before the rules, `color` after; without a title."""
    figure = Figure(figsize=PANEL)  # without the layout engine, for pages of 200 domains
    _draw_sizes(figure.add_axes((0.14, 0.17, 0.85, 0.75)), bins, (style.BEFORE, color))
    return figure


def size_histograms(sizes: pd.Series) -> Figure:
    """Draw the sizes of classes, by domain and label, one panel per domain; compare heights within one."""
    found = histograms(sizes, sizes)
    colors = style.domain_colors(domain for domain, _, _ in found)
    rows = -(-len(found) // COLUMNS)
    figure = Figure(figsize=(style.WIDTH, 0.3 + 1.6 * rows))
    figure.set_layout_engine("constrained", w_pad=0.11, h_pad=0.09)
    grid = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes in grid[len(found) :]:
        axes.set_visible(False)
    for axes, (domain, bins, note) in zip(grid, found, strict=False):
        _draw_sizes(axes, bins, (colors[domain],))
        title = style.legible(domain, 26)
        axes.set_title(title, loc="left", fontsize=10, color=style.INK, pad=14)
        axes.text(0, 1.06, note, transform=axes.transAxes, fontsize=8, color=style.MUTED)
    foot = "classes (height) by number of images, up to the number below a bar"
    figure.supxlabel(foot, x=0.02, ha="left", fontsize=8, color=style.MUTED)
    return figure


def _draw_sizes(axes: Axes, bins: pd.DataFrame, colors: Sequence[str]) -> None:
    """Draw the classes before and after, or with one colour only those after."""
    sides = {"before": 0.92, "after": 0.56} if len(colors) == 2 else {"after": 0.92}
    for (side, width), color in zip(sides.items(), colors, strict=True):
        bars = axes.bar(range(len(bins)), bins[side], width, color=color)
        for bar, one in zip(bars, bins.itertuples(), strict=True):
            counts = f"{one.before:,} classes before, {one.after:,} after"
            style.tooltip(bar, f"{one.name} images: {counts}")
    highest = bins[["before", "after"]].to_numpy().max()
    axes.set(xlim=(-0.5, len(bins) - 0.5), ylim=(0, highest))
    axes.set_yticks([0, highest], ["0", _short(highest, 10_000)])
    places = range(0, len(bins), -(-len(bins) // TICKS))
    axes.set_xticks(places, [_short(bins["largest"][place]) for place in places])
    axes.tick_params(length=0, labelsize=8, labelcolor=style.MUTED)
    axes.spines[["left", "right"]].set_visible(False)
    axes.spines["top"].set_color(style.FAINT)
    axes.spines["bottom"].set_color(style.MUTED)


def _short(count: int, least: int = 1000) -> str:
    """Abbreviate a count: 512, 4k."""
    return str(count) if count < least else f"{count / 1000:.0f}k"


def contact_sheet(table: pd.DataFrame, root: Path, classes: int = 4, views: int = 3) -> Figure:
    """Draw a row for each domain with `views` images of each of `classes` random classes."""
    colors = style.domain_colors(table["domain"])
    domains = table.groupby("domain")
    figure, axes = style.canvas(MARGIN + classes * (views + GAP) - GAP, len(domains))
    for y, (domain, rows) in enumerate(domains):
        style.heading(axes, MARGIN / 2, y + 0.47, domain, colors[domain])
        sizes = rows["label"].value_counts()
        large = sorted(sizes.index[sizes >= views])
        chosen = pd.Series(large, dtype=str).sample(min(classes, len(large)), random_state=0)
        for c, label in enumerate(chosen):
            paths = rows[rows["label"] == label].sample(views, random_state=0)["image_path"]
            for v, path in enumerate(paths):
                style.place(axes, style.thumbnail(root / path), MARGIN + c * (views + GAP) + v, y)
    return figure


def captioned_sheet(table: pd.DataFrame, root: Path, columns: int = 5) -> Figure:
    """Draw an image of each domain above its caption."""
    colors = style.domain_colors(table["domain"])
    rows = table.groupby("domain").sample(1, random_state=0).reset_index(drop=True)
    height = 1.5
    figure, axes = style.canvas(columns * 1.05, height * -(-len(rows) // columns))
    for i, row in rows.iterrows():
        x, y = i % columns * 1.05 + 0.05, i // columns * height
        style.place(axes, style.thumbnail(root / row["image_path"], side_px=160), x, y + 0.02)
        style.note(axes, x, y + 1.0, row["domain"], colors[row["domain"]])
        style.note(axes, x, y + 1.1, textwrap.fill(row["caption"], 32))
    return figure


def noted_sheet(table: pd.DataFrame, root: Path, views: int = 1, columns: int = 8) -> Figure:
    """Draw a row for each heading, in order of first appearance, with a note below each picture.

    Args:
        table: image_path, heading and note; pictures that belong together are consecutive.
        views: number of pictures between two gaps.
        columns: maximum pictures of a heading; the first ones are shown.
    """
    rows = table.groupby("heading", sort=False)
    width = MARGIN + columns + (-(-columns // views) - 1) * GAP
    figure, axes = style.canvas(width, NOTED * len(rows))
    for y, (name, shown) in enumerate(rows):
        style.heading(axes, MARGIN / 2, NOTED * y + 0.5, name)
        for i, picture in enumerate(shown.head(columns).itertuples()):
            x = MARGIN + i + i // views * GAP
            style.place(axes, style.thumbnail(root / picture.image_path), x, NOTED * y + 0.03)
            style.note(axes, x, NOTED * y + 1.0, textwrap.fill(picture.note, NOTE_CHARS))
    return figure


def selection_curve(table: pd.DataFrame, metric: str = "R@1 on val") -> Figure:
    """Draw the score after each step, with one standard error, and the gains of the rejected changes.

    `table` is the step table of `guie.curation.selection`, `metric` the name of what it maximized.
    """
    taken, rejected = table[table["step"].notna()], table[table["step"].isna()]
    shown = rejected.sort_values("gain", kind="stable").tail(REJECTED_SHOWN)
    figure = style.new_figure(max(3.2, 0.9 + 0.25 * len(shown)))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    style.tidy(left, f"{metric}, step by step", grid="y")
    options: dict[str, Any] = {"color": style.INK, "marker": "o", "markersize": 4, "linewidth": 1.6}
    options |= {"ecolor": style.MUTED, "capsize": 3}
    places = range(1, len(taken) + 1)
    score, error = taken["score"].astype(float), taken["standard_error"].astype(float)
    left.errorbar(places, score, yerr=error, **options)
    left.set_xlim(0.5, max(len(taken), 1) + 0.5)
    if len(taken) <= STEPS_NAMED:
        names = [style.legible(change, 24) for change in taken["change"]]
        turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        left.set_xticks(places, names, fontsize=9, **turned)
    else:
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.name_axes(left, "step")

    style.tidy(right, "gains of rejected changes", grid="x")
    bars = right.barh(range(len(shown)), shown["gain"], height=0.7)
    for bar, change, gain in zip(bars, shown["change"], shown["gain"], strict=True):
        bar.set_facecolor(style.RIGHT if gain > 0 else style.WRONG if gain < 0 else style.IGNORED)
        style.tooltip(bar, f"{change}: {gain:+.4f}")
    right.set_yticks(range(len(shown)), [style.legible(change, 24) for change in shown["change"]])
    right.set_ylim(-0.6, max(len(shown), 1) - 0.4)
    right.axvline(0, color=style.MUTED, linewidth=1)
    right.locator_params(axis="x", nbins=4)
    if len(shown) < len(rejected):
        style.name_axes(right, f"the best {REJECTED_SHOWN} of {len(rejected):,}")
    for axes, rows in ((left, taken), (right, shown)):
        if rows.empty:
            style.write_inside(axes, "nothing")
    return figure


def calibration(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw precision over coverage: the share of kept images that is right, over the share kept.

    `rows` are from `guie.curation.pseudo_labels.precision_curve`.
    """
    figure = style.new_figure(2.6, width=6.0)
    axes = style.tidy(figure.subplots(), grid="y")
    table = pd.DataFrame(rows)
    line: dict[str, Any] = {"color": style.ACCENT, "marker": "o", "markersize": 3}
    for column, dash, label in (("precision", "-", "measured"), ("at_least", "--", "at least")):
        axes.plot(table["coverage"], table[column], dash, label=label, linewidth=1.6, **line)
    axes.set(xlim=(0, 1.01), ylim=(0, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    style.name_axes(axes, "kept", "right")
    axes.legend(loc="lower left", fontsize=9, frameon=False, labelcolor=style.INK)
    return figure
