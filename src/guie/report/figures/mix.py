"""Figures of a mix: images by domain, class sizes, sheets of pictures, selection, pseudo-labels."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from guie.report.figures.style import (
    ACCENT,
    BEFORE,
    FAINT,
    IGNORED,
    INK,
    LEGEND_BELOW,
    LOST,
    MUTED,
    RIGHT,
    WIDTH,
    WRONG,
    canvas,
    domain_colors,
    heading,
    legible,
    name_axes,
    name_rows,
    new_figure,
    note,
    place,
    telling,
    thumbnail,
    tidy,
    write_inside,
)

SPLIT_COLORS = {"train": "#3f90da", "val": "#92dadd", "test": "#e76300"}
DROPPED = ("#94a4a2", "#b9ac70", "#717581", "#a96b59", "#832db6", "#ffa90e", "#bd1f01")


def split_bars(table: pd.DataFrame) -> Figure:
    """Draw the images and classes of each domain as bars, stacked by split."""
    labels = table.assign(label=table["label"].str.split("|")).explode("label")
    groups = ["domain", "split"]
    counts = {
        "images": table.groupby(groups)["image_path"].nunique(),
        "classes": labels.groupby(groups)["label"].nunique(),
    }
    domains = table["domain"].nunique()
    figure = new_figure(0.9 + 0.25 * domains)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, (what, count) in zip((left, right), counts.items(), strict=True):
        _stacked(axes, count.unstack(fill_value=0), what, SPLIT_COLORS)
    figure.legend(*left.get_legend_handles_labels(), **LEGEND_BELOW, ncols=3)
    return figure


def funnel(counts: pd.DataFrame) -> Figure:
    """Draw one bar per domain, with a segment for each split and for each rule that dropped images.

    Args:
        counts: images; rows are domains, columns are splits and dropping rules, in bar order.
    """
    rules = [column for column in counts if column not in SPLIT_COLORS]
    colors = SPLIT_COLORS | dict(zip(rules, cycle(DROPPED), strict=False))
    figure = new_figure(0.9 + 0.25 * len(counts))
    axes = figure.subplots()
    _stacked(axes, counts, "images", colors)
    figure.legend(**LEGEND_BELOW, ncols=len(counts.columns))
    return figure


def stages(left: pd.DataFrame) -> Figure:
    """Draw the images left after each rule: one bar per rule, with its numbers at the right.

    Args:
        left: name, images, classes and lost (images that the rule dropped); one row per rule.
    """
    height = 0.2 + 0.3 * max(len(left), 1)
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0.19, 0.05 / height, 0.49, 1 - 0.1 / height))
    axes.set(xlim=(0, max(1, left["images"].max())), ylim=(max(len(left), 1) - 0.5, -0.5))
    axes.barh(range(len(left)), left["images"], color=ACCENT, height=0.78)
    axes.set_yticks(range(len(left)), [legible(name, 26) for name in left["name"]], fontsize=10)
    axes.tick_params(axis="y", length=0, pad=8, labelcolor=INK)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    for y, stage in enumerate(left.itertuples()):
        right: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center_baseline"}
        axes.text(1.17, y, f"{stage.images:,}", ha="right", weight="bold", color=INK, **right)
        axes.text(1.19, y, f"in {stage.classes:,} classes", fontsize=9, color=MUTED, **right)
        if stage.lost:
            axes.text(1.64, y, f"−{stage.lost:,}", ha="right", fontsize=9, color=LOST, **right)
    return figure


def _stacked(axes: Axes, counts: pd.DataFrame, title: str, colors: dict[str, str]) -> None:
    """Draw a horizontal bar for each row, segments in the order of `colors`, the sum at its end."""
    tidy(axes, title, grid="x").spines["left"].set_visible(False)
    left = np.zeros(len(counts))
    places = range(len(counts))
    for name in [name for name in colors if name in counts]:
        axes.barh(places, counts[name], left=left, color=colors[name], label=name)
        left += counts[name].to_numpy()
    name_rows(axes, map(legible, counts.index))
    for y, total in enumerate(left):
        axes.text(total, y, f" {total:,.0f}", va="center", fontsize=8, color=MUTED)
    axes.margins(x=0.1)
    if not axes.yaxis_inverted():
        axes.invert_yaxis()


PANEL = (2.2, 1.15)  # inches, without a heading
LEFT, RIGHT_IN, TOP, BOTTOM = 0.42, 0.02, 0.1, 0.2  # margins in it
HEADING, FOOT = 0.45, 0.3  # inches above each of several panels, and below all of them
SHARES = (0.92, 0.56)  # of the width of a bin: the bar before and, inside it, the bar after
COLUMNS = 4  # panels in a row
TICKS = 9  # size labels that fit below a panel
SINGLE = 16  # largest class size for which each size has its own bin


class Bin(NamedTuple):
    """The classes in a range of sizes."""

    name: str  # "5–8" images
    largest: int  # 8
    before: int
    after: int


class Histogram(NamedTuple):
    """The class sizes of one domain."""

    domain: str
    bins: list[Bin]
    highest: int  # classes in the fullest bin, before or after
    classes: tuple[int, int]  # before, after
    median: tuple[float, float]  # images; 0 where there is no class


def histograms(before: pd.Series, after: pd.Series) -> list[Histogram]:
    """Compute a histogram for each domain, all with the same bins.

    The bins are 1, 2, 3, ..., or for large classes 1, 2, 3–4, 5–8, ...

    Args:
        before: images of each class, by domain and label, from `guie.report.pages.class_sizes`.
        after: the same for the remaining images.
    """
    largest = max((int(sizes.max()) for sizes in (before, after) if len(sizes)), default=1)
    ends = np.arange(1, largest + 1) if largest <= SINGLE else 2 ** np.arange(63)
    ends = ends[: np.searchsorted(ends, largest) + 1]
    sizes_of = [_by_domain(before), _by_domain(after)]
    return [
        _histogram(domain, ends, [of.get(domain, np.array([], int)) for of in sizes_of])
        for domain in sorted({*sizes_of[0], *sizes_of[1]})
    ]


def size_histogram(panel: Histogram, color: str) -> Figure:
    """Draw one domain's class sizes, grey before the rules, `color` after; without a title."""
    figure = Figure(figsize=PANEL)
    _draw(figure, panel, (BEFORE, color), 0.0, 0.0)
    return figure


def size_histograms(sizes: pd.Series) -> Figure:
    """Draw the class sizes of each domain, one panel per domain; heights compare within a panel.

    Args:
        sizes: images of each class, by domain and label.
    """
    panels = histograms(sizes, sizes)
    colors = domain_colors(panel.domain for panel in panels)
    width, height = PANEL[0], PANEL[1] + HEADING
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(max(WIDTH, width * COLUMNS), FOOT + height * rows))
    for at, panel in enumerate(panels):
        x, y = at % COLUMNS * width, FOOT + (rows - 1 - at // COLUMNS) * height
        color = colors[panel.domain]
        _draw(figure, panel, (color, color), x, y)
        _write(figure, x + LEFT, y + PANEL[1] + 0.2, legible(panel.domain, 26), size=10, color=INK)
        _write(figure, x + LEFT, y + PANEL[1] + 0.04, described(panel), size=8)
    foot = "classes (height) by number of images, up to the number below a bar"
    _write(figure, LEFT, 0.06, foot)
    return figure


def described(panel: Histogram) -> str:
    """Describe the class count and median size: "20 → 12 classes, median 5 → 8 images"."""
    classes = dict.fromkeys(f"{count:,}" for count in panel.classes)
    median = dict.fromkeys(f"{images:g}" for images in panel.median)
    return f"{' → '.join(classes)} classes, median {' → '.join(median)}"


def _draw(figure: Figure, panel: Histogram, colors: tuple[str, str], x: float, y: float) -> None:
    """Draw a panel with its lower left corner at (x, y) inches, in the colours of before and after.

    It uses no Axes, because two hundred of them would take ten seconds.
    """
    width, height = PANEL[0] - LEFT - RIGHT_IN, PANEL[1] - TOP - BOTTOM
    slot = width / len(panel.bins)
    x, y = x + LEFT, y + BOTTOM
    _bar(figure, x, y + height, width, 0.007, FAINT)
    _write(figure, x - 0.06, y + height, _short(panel.highest, 10_000), ha="right", va="center")
    _write(figure, x - 0.06, y, "0", ha="right", va="center")
    every = -(-len(panel.bins) // TICKS)
    for at, bar in enumerate(panel.bins):
        middle = x + slot * (at + 0.5)
        message = f"{bar.name} images: {bar.before:,} classes before, {bar.after:,} after"
        for count, color, share in zip((bar.before, bar.after), colors, SHARES, strict=True):
            if count:
                wide, high = slot * share, height * count / panel.highest
                telling(_bar(figure, middle - wide / 2, y, wide, high, color), message)
        if at % every == 0:
            _write(figure, middle, y - 0.04, _short(bar.largest), ha="center", va="top")
    _bar(figure, x, y, width, 0.007, MUTED)


def _bar(figure: Figure, x: float, y: float, width: float, height: float, color: str) -> Rectangle:
    """Draw a filled rectangle, in inches of the figure."""
    drawn = Rectangle((x, y), width, height, color=color, linewidth=0)
    drawn.set_transform(figure.dpi_scale_trans)
    figure.add_artist(drawn)
    return drawn


def _write(figure: Figure, x: float, y: float, text: str, size: float = 8, color: str = MUTED,
           ha: str = "left", va: str = "bottom") -> None:  # fmt: skip
    figure.text(x, y, text, fontsize=size, color=color, ha=ha, va=va,
                transform=figure.dpi_scale_trans)  # fmt: skip


def _short(count: int, least: int = 1000) -> str:
    """Abbreviate a count: 512, 4k."""
    return str(count) if count < least else f"{count / 1000:.0f}k"


def _histogram(domain: str, ends: np.ndarray, sizes: Sequence[np.ndarray]) -> Histogram:
    """Count the classes before and after; `ends` [bins] are the largest sizes of the bins."""
    before, after = sizes
    counts = [np.bincount(np.searchsorted(ends, n), minlength=len(ends)).tolist() for n in sizes]
    starts = [1, *(ends[:-1] + 1)]
    names = [
        f"{end:,}" if start == end else f"{start:,}–{end:,}"
        for start, end in zip(starts, ends, strict=True)
    ]
    return Histogram(
        domain=domain,
        bins=[Bin(*bar) for bar in zip(names, ends.tolist(), *counts, strict=True)],
        highest=max(map(max, counts)),
        classes=(len(before), len(after)),
        median=(_median(before), _median(after)),
    )


def _median(sizes: np.ndarray) -> float:
    return float(np.median(sizes)) if len(sizes) else 0.0


def _by_domain(sizes: pd.Series) -> dict[str, np.ndarray]:
    return {domain: rows.to_numpy() for domain, rows in sizes.groupby(level="domain")}


GAP = 0.22  # between classes, in thumbnails
MARGIN = 0.4  # for a row's heading
NOTED = 1.55  # a row with notes
NOTE_CHARS = 17  # as wide as a thumbnail


def contact_sheet(
    table: pd.DataFrame, root: Path, classes: int = 4, views: int = 3, seed: int = 0
) -> Figure:
    """Draw a row for each domain with `views` images of each of `classes` random classes."""
    colors = domain_colors(table["domain"])
    groups = {
        domain: _sample_classes(rows, classes, views, seed)
        for domain, rows in table.groupby("domain")
    }
    figure, axes = canvas(MARGIN + classes * (views + GAP) - GAP, len(groups))
    for y, (domain, paths_of) in enumerate(groups.items()):
        heading(axes, MARGIN / 2, y + 0.47, domain, colors[domain])
        for c, paths in enumerate(paths_of):
            for v, path in enumerate(paths):
                place(axes, thumbnail(root / path), MARGIN + c * (views + GAP) + v, y)
    return figure


def captioned_sheet(table: pd.DataFrame, root: Path, columns: int = 5, seed: int = 0) -> Figure:
    """Draw an image of each domain above its caption."""
    colors = domain_colors(table["domain"])
    rows = table.groupby("domain").sample(1, random_state=seed).reset_index(drop=True)
    height = 1.5
    figure, axes = canvas(columns * 1.05, height * -(-len(rows) // columns))
    for i, row in rows.iterrows():
        x, y = i % columns * 1.05 + 0.05, i // columns * height
        place(axes, thumbnail(root / row["image_path"], side_px=160), x, y + 0.02)
        note(axes, x, y + 1.0, row["domain"], colors[row["domain"]])
        note(axes, x, y + 1.1, textwrap.fill(row["caption"], 32))
    return figure


def noted_sheet(table: pd.DataFrame, root: Path, views: int = 1, columns: int = 8) -> Figure:
    """Draw a row for each heading, in order of first appearance, with a note below each picture.

    Args:
        table: image_path, heading and note; pictures that belong together are consecutive.
        root: folder of the images.
        views: number of pictures between two gaps.
        columns: maximum pictures of a heading; the first ones are shown.
    """
    rows = table.groupby("heading", sort=False)
    width = MARGIN + columns + (-(-columns // views) - 1) * GAP
    figure, axes = canvas(width, NOTED * len(rows))
    for y, (name, shown) in enumerate(rows):
        heading(axes, MARGIN / 2, NOTED * y + 0.5, name)
        for i, picture in enumerate(shown.head(columns).itertuples()):
            x = MARGIN + i + i // views * GAP
            place(axes, thumbnail(root / picture.image_path), x, NOTED * y + 0.03)
            note(axes, x, NOTED * y + 1.0, textwrap.fill(picture.note, NOTE_CHARS))
    return figure


def _sample_classes(rows: pd.DataFrame, classes: int, views: int, seed: int) -> list[list[str]]:
    """Return paths of `views` images of each of `classes` classes, or of fewer if none are left."""
    sizes = rows["label"].value_counts()
    large = sorted(sizes.index[sizes >= views])
    chosen = pd.Series(large, dtype=str).sample(min(classes, len(large)), random_state=seed)
    return [
        rows[rows["label"] == label].sample(views, random_state=seed)["image_path"].tolist()
        for label in chosen
    ]


NAMED = 16  # steps; more names would overlap
REFUSED = 20  # rejected changes with the largest gains that are shown


def selection_curve(table: pd.DataFrame, metric: str = "R@1 on val") -> Figure:
    """Draw the score after each step, and the gains of the rejected changes.

    Args:
        table: the step table of `guie.curation.selection`.
        metric: name of the maximized metric, for the axes.
    """
    taken, refused = table[table["step"].notna()], table[table["step"].isna()]
    shown = refused.sort_values("gain", kind="stable").tail(REFUSED)
    figure = new_figure(max(3.2, 0.9 + 0.25 * len(shown)))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    _steps(tidy(left, f"{metric}, step by step", grid="y"), taken)
    _gains(tidy(right, "gain of what was turned down", grid="x"), shown)
    if len(shown) < len(refused):
        name_axes(right, f"the best {REFUSED} of {len(refused):,}")
    return figure


def _steps(axes: Axes, taken: pd.DataFrame) -> None:
    """Draw a line through the scores, with one standard error of each step's gain."""
    score, error = taken["score"].astype(float), taken["standard_error"].astype(float)
    axes.errorbar(range(1, len(taken) + 1), score, yerr=error, color=INK, marker="o",
                  markersize=4, linewidth=1.6, ecolor=MUTED, capsize=3)  # fmt: skip
    axes.set_xlim(0.5, max(len(taken), 1) + 0.5)
    if taken.empty:
        write_inside(axes, "nothing")
    elif len(taken) <= NAMED:
        names = [legible(change, 24) for change in taken["change"]]
        axes.set_xticks(range(1, len(taken) + 1), names, fontsize=9, rotation=30, ha="right",
                        rotation_mode="anchor")  # fmt: skip
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        name_axes(axes, "step")


def _gains(axes: Axes, refused: pd.DataFrame) -> None:
    """Draw one bar per change; a tooltip states its gain."""
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
        write_inside(axes, "nothing")


def calibration(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw precision over coverage: the share of kept images that is right, over the share kept.

    Args:
        rows: from `guie.curation.pseudo_labels.thinned`: coverage, precision and at_least, the
            lower 95 % bound of precision; all from 0 to 1.
    """
    figure = new_figure(2.6, width=6.0)
    axes = tidy(figure.subplots(), grid="y")
    coverage = [row["coverage"] for row in rows]
    for key, style, name in (("precision", "-", "measured"), ("at_least", "--", "at least")):
        (line,) = axes.plot(coverage, [row[key] for row in rows], color=ACCENT, label=name)
        line.set(linestyle=style, marker="o", markersize=3, linewidth=1.6)
    axes.set(xlim=(0, 1.01), ylim=(0, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    name_axes(axes, "kept", "right")
    axes.legend(loc="lower left", fontsize=9, frameon=False, labelcolor=INK)
    return figure
