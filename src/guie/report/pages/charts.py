"""The charts of a page, from those that notebooks show too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from guie.report.figures import calibration, selection_curve, size_histogram, stages
from guie.report.figures.sizes import Histogram
from guie.report.pages.funnel import Stage
from guie.report.pages.svg import inline_svg


def charts(
    left: Sequence[Stage],
    labels: Mapping[str, Any] | None,
    earned: pd.DataFrame | None,
    metric: str,
) -> dict[str, Markup]:
    """Those that there is something to draw for, by the section that they stand in.

    Args:
        left: the funnel of all sources together.
        labels: what the summary says of labels by a CLIP.
        earned: of `guie.curation.selection.earned.earned`.
        metric: what the selection raised.
    """
    found = {}
    if left:
        figure = stages(pd.DataFrame(left, columns=Stage._fields))
        found["funnel"] = inline_svg(figure, "funnel-chart", "Images left after each rule")
    if labels and labels["calibration"]:
        about = "Precision over coverage; the numbers stand in the table"
        found["labels"] = inline_svg(calibration(labels["calibration"]), "labels-chart", about)
    if earned is not None and len(earned):
        about = f"{metric} after each step; the numbers stand in the table"
        found["selection"] = inline_svg(selection_curve(earned, metric), "selection-chart", about)
    return found


def size_charts(panels: Sequence[Histogram], colors: Mapping[str, str]) -> list[Markup]:
    """A small chart of the class sizes of each domain."""
    return [
        inline_svg(
            size_histogram(panel, colors[panel.domain]),
            f"sizes-chart-{place}",
            f"Classes by size, {panel.domain}; the numbers stand in the table",
        )
        for place, panel in enumerate(panels)
    ]
