"""Maps: embeddings in the plane, by t-SNE."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from sklearn.manifold import TSNE

from guie.report.figures.pictures import thumbnail
from guie.report.figures.style import FAINT, INK, MUTED, PALETTE, domain_colors, new_figure

MAX_POINTS = 1500  # so that t-SNE takes seconds


def sample_rows(table: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """At most MAX_POINTS rows, evenly over the domains, in the table's order."""
    share = min(1.0, MAX_POINTS / len(table))
    return table.groupby("domain").sample(frac=share, random_state=seed).sort_index()


def project(emb_ND: np.ndarray, seed: int = 0) -> np.ndarray:
    """t-SNE by cosine similarity: [N, 2] (van der Maaten and Hinton, JMLR 2008).

    Neighbourhoods mean something in it; distances between clusters and their sizes do not.
    """
    perplexity = min(30.0, (len(emb_ND) - 1) / 3)
    # Coarser forces and half the steps of the default: seconds instead of half a minute.
    tsne = TSNE(perplexity=perplexity, angle=0.7, max_iter=500, init="pca", random_state=seed)
    return tsne.fit_transform(emb_ND / np.linalg.norm(emb_ND, axis=1, keepdims=True))


def domain_map(points_N2: dict[str, np.ndarray], domains: pd.Series) -> Figure:
    """Points coloured by domain, a panel a system."""
    colors = domain_colors(domains)
    figure = new_figure(4.6 if len(points_N2) > 1 else 6.5)
    panels = figure.subplots(1, len(points_N2), squeeze=False).flat
    for axes, (title, xy_N2) in zip(panels, points_N2.items(), strict=True):
        axes.scatter(*xy_N2.T, c=domains.map(colors), s=7, linewidths=0, alpha=0.8)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(FAINT)
    handles = [
        axes.scatter([], [], color=color, s=30, label=domain) for domain, color in colors.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def class_map(xy_N2: np.ndarray, table: pd.DataFrame, root: Path, classes: int = 10) -> Figure:
    """Pictures of one domain at their points, framed by class; other classes are grey points.

    Args:
        xy_N2: a point for each row of `table`.
        table: image_path and label of one domain's images.
        root: folder of the images.
        classes: the largest so many are shown as pictures.
    """
    largest = table["label"].value_counts().index[:classes]
    colors = dict(zip(largest, PALETTE, strict=False))
    figure = new_figure(6.2)
    axes = figure.subplots()
    x_N, y_N = xy_N2.T
    axes.scatter(x_N, y_N, color=FAINT, s=14, linewidths=0)
    for xy, path, label in zip(xy_N2, table["image_path"], table["label"], strict=True):
        if label in colors:
            picture = OffsetImage(thumbnail(root / path, side_px=48), zoom=0.5)
            frame = {"edgecolor": colors[label], "linewidth": 2}
            axes.add_artist(AnnotationBbox(picture, xy, pad=0.05, bboxprops=frame))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(FAINT)
    axes.set_title(f"{len(largest)} classes of {table['domain'].iloc[0]}, a frame colour a class",
                   loc="left", fontsize=10, color=MUTED)  # fmt: skip
    return figure
