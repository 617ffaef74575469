"""Figures of embeddings: densities, t-SNE maps, spectra, neighbour galleries."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.mlab import GaussianKDE
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

from guie.report.figures import style

POINTS = 300  # of a curve
MAX_POINTS = 1500  # so that t-SNE takes seconds
COLUMNS = 4  # panels in a row
LEFT, GAP, ROW = 0.35, 0.3, 1.42  # of a gallery, in thumbnails
NAME_CHARS = 15  # as wide as a thumbnail


def densities(values: pd.DataFrame, name: str, mark: float | None = None) -> Figure:
    """Draw one panel per `panel`, with a curve for each `line` (colour) and `dash` (stroke).

    Densities are Gaussian kernel estimates (Scott's rule), so they extend slightly beyond the
    smallest and largest value. `name` is that of `value`; `mark` draws a vertical line in each panel, such as
    1 for a ratio. NaN is ignored.
    """
    values = values.dropna(subset=["value"])
    panels = list(dict.fromkeys(values["panel"]))
    colors = dict(zip(dict.fromkeys(values["line"]), style.PALETTE, strict=False))
    dashes = dict(zip(dict.fromkeys(values["dash"]), style.DASHES, strict=False))
    figure = style.new_figure(3.4)
    grid = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    span = np.linspace(values["value"].min(), values["value"].max(), POINTS)
    for axes, panel in zip(grid, panels, strict=True):
        style.tidy(axes, style.legible(str(panel)), grid="x").set_yticks([])
        style.name_axes(axes, name)
        of_panel = values[values["panel"] == panel]
        for (line, dash), of_curve in of_panel.groupby(["line", "dash"], sort=False):
            drawn, stroke = of_curve["value"].to_numpy(), {"linestyle": dashes[dash]}
            if len(drawn) < 2 or np.ptp(drawn) == 0:  # a kernel estimate needs some variance
                axes.axvline(drawn[0], color=colors[line], **stroke)
            else:
                density = GaussianKDE(drawn)(span)
                axes.plot(span, density, color=colors[line], linewidth=1.8, **stroke)
        if mark is not None:
            axes.axvline(mark, color=style.MUTED, linewidth=1, linestyle=":")
    grid[0].set_ylim(bottom=0)  # panels share this axis; set it last, because it stops autoscaling
    if len(dashes) == 1:  # omit what is the same everywhere
        style.legend_below(figure, colors)
    else:
        style.legend_below(figure, colors if len(colors) > 1 else {}, dashes)
    return figure


def sample_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Sample at most about MAX_POINTS rows, the same share of each domain, in the table's order."""
    share = min(1.0, MAX_POINTS / len(table))
    return table.groupby("domain").sample(frac=share, random_state=0).sort_index()


def project(emb_ND: np.ndarray) -> np.ndarray:
    """Project by t-SNE on cosine similarity: [N, 2] (van der Maaten and Hinton, JMLR 2008).

    Only neighbourhoods are meaningful, not the distances between clusters or their sizes.
    """
    from sklearn.manifold import TSNE  # takes a second, and most figures need none

    perplexity = min(30.0, (len(emb_ND) - 1) / 3)
    # Coarser forces and half the default steps take seconds instead of half a minute.
    tsne = TSNE(perplexity=perplexity, angle=0.7, max_iter=500, init="pca", random_state=0)
    return tsne.fit_transform(emb_ND / np.linalg.norm(emb_ND, axis=1, keepdims=True))


def domain_map(points_N2: dict[str, np.ndarray], domains: pd.Series) -> Figure:
    """Draw points coloured by domain, one panel per system."""
    colors = style.domain_colors(domains)
    figure = style.new_figure(4.6 if len(points_N2) > 1 else 6.5)
    panels = figure.subplots(1, len(points_N2), squeeze=False).flat
    for axes, (title, xy_N2) in zip(panels, points_N2.items(), strict=True):
        axes.scatter(*xy_N2.T, c=domains.map(colors), s=7, linewidths=0, alpha=0.8)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=style.INK)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(style.FAINT)
    handles = [axes.scatter([], [], color=c, s=30, label=domain) for domain, c in colors.items()]
    figure.legend(handles=handles, **style.LEGEND_BELOW, ncols=5)
    return figure


def class_map(xy_N2: np.ndarray, table: pd.DataFrame, root: Path, classes: int = 10) -> Figure:
    """Draw one domain's pictures at their points, framed by class; other classes are grey points.

    Only the `classes` largest are shown as pictures; `xy_N2` has a point for each row of `table`.
    """
    largest = table["label"].value_counts().index[:classes]
    colors = dict(zip(largest, style.PALETTE, strict=False))
    figure = style.new_figure(6.2)
    axes = figure.subplots()
    x_N, y_N = xy_N2.T
    axes.scatter(x_N, y_N, color=style.FAINT, s=14, linewidths=0)
    for xy, path, label in zip(xy_N2, table["image_path"], table["label"], strict=True):
        if label in colors:
            picture = OffsetImage(style.thumbnail(root / path, side_px=48), zoom=0.5)
            frame = {"edgecolor": colors[label], "linewidth": 2}
            axes.add_artist(AnnotationBbox(picture, xy, pad=0.05, bboxprops=frame))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(style.FAINT)
    title = f"{len(largest)} classes of {table['domain'].iloc[0]}, a frame colour a class"
    axes.set_title(title, loc="left", fontsize=10, color=style.MUTED)
    return figure


def spectra(variances: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Draw the variances along principal axes, largest first: a panel per domain, a curve per model.

    They are by domain and model, from `guie.evaluation.geometry.spectrum`.
    """
    models = list(dict.fromkeys(model for of in variances.values() for model in of))
    colors = dict(zip(models, style.PALETTE, strict=False))
    figure, panels = _panels([*variances], "principal axis")
    for domain, axes in panels.items():
        for model, variance_D in variances[domain].items():
            axes.plot(range(1, len(variance_D) + 1), variance_D, color=colors[model], linewidth=1.6)
    first = next(iter(panels.values()))
    first.set_ylim(bottom=0)  # panels share this axis; set it last, because it stops autoscaling
    style.legend_below(figure, colors)
    return figure


def val_courses(runs: Mapping[str, Sequence[dict[str, Any]]]) -> Figure:
    """Draw val R@1 over steps: a panel per run, a curve per domain, a dot at each maximum.

    Domains that peak long before others overfit while the others still learn (Feng et al., figure 2). `runs`
    are by name, from `guie.training.run_folder.read_metrics`; one without validation says so.
    """
    tables = {}  # val R@1; rows are steps, columns are domains
    for name, lines in runs.items():
        table = pd.DataFrame([line for line in lines if style.VAL in line])
        if len(table):
            table = table.drop_duplicates("step", keep="last").set_index("step")
            table = table.filter(like=f"{style.VAL}/")
            table = table.rename(columns=lambda name: name.partition("/")[2])
        tables[name] = table
    colors = style.domain_colors(domain for table in tables.values() for domain in table)
    figure, panels = _panels([*tables], "step")
    for name, axes in panels.items():
        if tables[name].empty:
            style.write_inside(axes, "no val split")
        for domain, course in tables[name].items():
            axes.plot(course.index, course, color=colors[str(domain)], linewidth=1.4)
            axes.plot(course.idxmax(), course.max(), "o", color=colors[str(domain)], markersize=5)
    style.legend_below(figure, colors)
    return figure


def _panels(titles: list[str], x: str) -> tuple[Figure, dict[str, Axes]]:
    """Create a grid of panels with a common scale, at most COLUMNS in a row."""
    columns = min(COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = style.new_figure(0.7 + 2.2 * rows)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
    panels = {}
    for number, axes in enumerate(grid):
        if number < len(titles):
            panels[titles[number]] = style.tidy(axes, style.legible(titles[number]), grid="y")
            style.name_axes(axes, x)
        else:
            axes.set_visible(False)
    return figure, panels


def gallery(neighbours: pd.DataFrame, table: pd.DataFrame, root: Path) -> Figure:
    """Draw one row per query: its picture, then its neighbours, nearest first, with distances.

    Neighbours with the query's label have a green frame, others a red one. Faded neighbours are
    after the first min(5, n), where n is the number of positives, and are not counted.

    `neighbours` are rows of the scorer's `score.neighbours.csv`; the queries keep their order. `table` has
    the manifest's rows of that split.
    """
    about = table.drop_duplicates("image_path").set_index("image_path")
    colors = style.domain_colors(table["domain"])
    queries = neighbours.groupby("query", sort=False)
    columns = LEFT + 1 + GAP + neighbours["rank"].max()
    figure, axes = style.canvas(columns, ROW * len(queries), width=0.9 * columns)
    for row, (query, found) in enumerate(queries):
        y = row * ROW + 0.04
        domain = about.loc[query, "domain"]
        style.heading(axes, LEFT / 2, y + 0.47, domain, colors[domain])
        style.place(axes, style.thumbnail(root / query), LEFT, y)
        style.note(axes, LEFT, y + 0.98, _class_name(about.loc[query, "label"]), style.INK)
        for one in found.itertuples():
            # Frame colour and sign both show whether it is right, for colour-blind readers
            frame, sign = (style.RIGHT, "✓") if one.relevant else (style.WRONG, "✗")
            frame, sign = (frame, sign) if one.counted else (style.IGNORED, "·")
            x, picture = LEFT + GAP + one.rank, style.thumbnail(root / one.image_path)
            style.place(axes, picture, x, y, frame=frame, faded=not one.counted)
            name = _class_name(about.loc[one.image_path, "label"])
            style.note(axes, x, y + 0.98, f"{sign} {one.distance:.2f}\n{name}", frame)
    return figure


def _class_name(label: str) -> str:
    """Return `domain/class` without the domain, in two lines as wide as a thumbnail."""
    name = label.split("|")[0].partition("/")[2] or label
    return textwrap.fill(name, NAME_CHARS, max_lines=2, placeholder="…")
