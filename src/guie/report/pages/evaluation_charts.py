"""Charts of the evaluation page: recall, distances, difficulty by domain, and hubs."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from guie.evaluation.diagnosis import DEPTH, Gaps, Nearest, occurrences
from guie.report.figures import style
from guie.report.pages.html import inline_svg

RANKS = (1, 2, 3, 4, 5, 8, 10, 15, 20, 30, 40, 50, 70, DEPTH)
MOST_PANELS = 24  # of a kind: the domains with the most queries
MEAN = "mean over domains"
PANEL = (2.0, 3.2)  # inches, height and width: 352 px of a page
SMALL = 8
BINS = 40  # of distances
CLASS_BINS = 10  # of R@1
Panel = tuple[str, str, Markup]  # of a grid: title, note, chart
# Kinds of answers differ in lightness and dash as well as in colour.
KINDS: dict[str, tuple[str, str]] = {
    "nearest right": ("#3f90da", "-"),
    "any right": ("#3f90da", ":"),
    "nearest wrong": ("#e76300", "-"),
    "any wrong": ("#e76300", ":"),
}


def largest_domains(near: Nearest, table: pd.DataFrame, most: int = MOST_PANELS) -> list[str]:
    """Return the `most` domains with the most queries, sorted by name."""
    counts = pd.Series(table["domain"].to_numpy()[near.query_Q]).value_counts()
    return sorted(str(name) for name in counts.index[:most])


def recall_panels(
    nears: Mapping[str, Nearest], domains: Sequence[str], table: pd.DataFrame
) -> Iterator[Panel]:
    """Draw R@k over k for the mean over domains, then for each domain; one line per model."""
    recalls = {}  # by model; rows are k, columns are domains
    for name, near in nears.items():
        domain_Q = table["domain"].to_numpy()[near.query_Q]
        found = {k: pd.Series(near.recall_at(k)).groupby(domain_Q).mean() for k in RANKS}
        recalls[name] = pd.DataFrame(found).T
    for place, domain in enumerate([MEAN, *domains]):
        values = pd.DataFrame(
            {n: found[domain] if place else found.mean(axis=1) for n, found in recalls.items()}
        )
        figure, axes = _axes("k", "R@k")
        for (name, line_K), color in zip(values.items(), style.PALETTE, strict=False):
            (line,) = axes.plot(line_K.index, line_K, color=color, linewidth=1.8)
            numbers = ", ".join(f"R@{k} {value:.3f}" for k, value in line_K.items())
            style.tooltip(line, f"{name}: {numbers}")
        axes.set_xscale("log")
        axes.set_xticks([1, 10, 100], ["1", "10", "100"])
        axes.set_xticks([], minor=True)
        axes.set(xlim=(1, DEPTH), ylim=(max(0.0, values.to_numpy().min() - 0.05), 1.005))
        note = ", ".join(f"R@10 {number:.3f}" for number in values.loc[10])
        chart = inline_svg(figure, f"recall-{place}", f"Recall over k, {domain}: {note}")
        yield domain, note, chart


def gap_panels(found: Gaps, domains: Sequence[str], table: pd.DataFrame) -> Iterator[Panel]:
    """Draw histograms of the distances to right and wrong answers, one panel per domain."""
    right, wrong = found.positive_S, found.negative_S
    distances = np.stack([right, found.any_positive_S, wrong, found.any_negative_S])
    domain_S = table["domain"].to_numpy()[found.query_S]
    most = float(np.nanmax(distances))
    edges = np.linspace(0, most, BINS + 1)
    for place, domain in enumerate(domains):
        own_S = domain_S == domain
        figure, axes = _axes("distance", "queries")
        for (kind, (color, dash)), distance_S in zip(KINDS.items(), distances, strict=True):
            own = distance_S[own_S & np.isfinite(distance_S)]
            counts, _ = np.histogram(own, edges)
            drawn = axes.stairs(counts, edges, color=color, linestyle=dash, linewidth=1.5)
            if len(own):
                style.tooltip(drawn, f"{kind}: median {np.median(own):.3f}")
        axes.set(xlim=(0, most), ylim=(0, None), yticks=[])
        apart_S = (wrong - right)[own_S]
        apart_S, note = apart_S[np.isfinite(apart_S)], "no wrong answer in the index"
        if len(apart_S):
            apart = float(np.median(apart_S))
            side = "farther" if apart >= 0 else "nearer"
            note = f"the nearest wrong {abs(apart):.3f} {side} than the nearest right, median"
        yield domain, note, inline_svg(figure, f"gaps-{place}", f"Distances, {domain}")


def difficulty_panels(
    classes: pd.DataFrame, domains: Sequence[str], colors: Mapping[str, str]
) -> Iterator[Panel]:
    """Draw histograms of the classes' R@1, one panel per domain; `classes` is from `by_class`."""
    for place, domain in enumerate(domains):
        value_C = classes.loc[classes["domain"] == domain, "r_at_1"].to_numpy()
        figure, axes = _axes("R@1 of the class", "classes")
        counts, edges = np.histogram(value_C, CLASS_BINS, (0, 1))  # the last bin includes 1
        bars = axes.bar(edges[:-1], counts, 0.9 / CLASS_BINS, align="edge", color=colors[domain])
        for bar, start, count in zip(bars, edges, counts, strict=False):
            span = f"{start:.1f} to {start + 1 / CLASS_BINS:.1f}"
            style.tooltip(bar, f"R@1 {span}: {count:,} classes")
        axes.set(xlim=(0, 1))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        note = f"{len(value_C):,} classes, {(value_C == 0).sum():,} of them never right"
        yield domain, note, inline_svg(figure, f"difficulty-{place}", f"Classes by R@1, {domain}")


def occurrence_chart(nears: Mapping[str, Nearest]) -> Markup:
    """Draw how many images are found how often, as dots on log axes, one colour per model.

    Hubs appear as a straight tail of dots on the right, images that are never found left of 1.
    """
    figure, axes = _axes("times among the first ten", "images")
    for (name, near), color in zip(nears.items(), style.PALETTE, strict=False):
        times, images = np.unique(occurrences(near), return_counts=True)
        dots = axes.scatter(np.maximum(times, 0.5), images, s=7, color=color, linewidths=0)
        style.tooltip(dots, f"{name}: {images[times == 0].sum():,} images are never found")
    axes.axvline(0.7, color=style.FAINT, linewidth=0.8)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([0.5, 1, 10, 100], ["0", "1", "10", "100"])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0.7, None)
    # Write powers of ten as plain text, because math text does not become text of the page.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    return inline_svg(figure, "hubs", "Images by how often they are found")


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure = style.new_figure(*PANEL)
    axes = style.tidy(figure.subplots(), grid="y")
    axes.tick_params(labelsize=SMALL, length=2, colors=style.INK)
    style.name_axes(axes, x, y, SMALL)
    return figure, axes
