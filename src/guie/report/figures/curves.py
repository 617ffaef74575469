"""Training curves out of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from guie.report.figures.style import INK, MUTED, PALETTE, domain_colors, new_figure, tidy

# Of parts that other tasks have the palette's rest, in the order of the log
LR_COLORS = {"lr_backbone": "#3f90da", "lr_head": "#e76300", "lr_classes": "#832db6"}
OTHER_COLORS = [color for color in PALETTE if color not in LR_COLORS.values()]
DASHES = ("-", "--", ":", "-.")  # rates of several parts are often the same
VAL = "val_r_at_1"
PAD = 16  # above a panel, for the names of the stages


def training_curves(lines: Sequence[dict[str, Any]]) -> Figure:
    """Loss, training accuracy, learning rates, and R@1 on val, over steps; stages divided.

    Args:
        lines: what `guie.training.run.record.read_metrics` returns: "step" and "stage" in every line; "loss",
            "accuracy" and "lr_<part>" in training lines, "val_r_at_1" and "val_r_at_1/<domain>" in
            validation lines.
    """
    table = pd.DataFrame(lines).set_index("step")
    figure = new_figure(5.4)
    (loss, accuracy), (rates, val) = figure.subplots(2, 2, sharex=True)
    for axes, key in ((loss, "loss"), (accuracy, "accuracy")):
        tidy(axes, f"training {key}", grid="y", pad=PAD)
        _line(axes, table[key], INK)
    accuracy.set_ylim(0, 1)
    _learning_rates(rates, table)
    _validation(val, table)
    for axes in (rates, val):
        axes.set_xlabel("step", fontsize=9, color=MUTED)
    for axes in (loss, accuracy, rates, val):
        _divide(axes, table["stage"])
    return figure


def _line(axes: Axes, series: pd.Series, color: str, width: float = 1.6, **kwargs: Any) -> None:
    """A line through what was logged; points where there are few."""
    series = series.dropna()
    marker = "o" if len(series) < 30 else None
    axes.plot(series, color=color, linewidth=width, marker=marker, markersize=3, **kwargs)


def _learning_rates(axes: Axes, table: pd.DataFrame) -> None:
    tidy(axes, "learning rates", grid="y", pad=PAD).set_yscale("log")
    keys = [key for key in table if key.startswith("lr_") and (table[key] > 0).any()]
    colors = (
        dict(zip([key for key in keys if key not in LR_COLORS], cycle(OTHER_COLORS))) | LR_COLORS
    )
    for key, dash in zip(keys, cycle(DASHES)):
        rate, part = table[key], key.removeprefix("lr_")
        _line(axes, rate.where(rate > 0), colors[key], label=part, linestyle=dash)
    top = table[keys].max().max()
    axes.set_ylim(1e-4 * top, 2 * top)  # a cosine's last steps would press all others together
    axes.legend(fontsize=8, frameon=False)


def _validation(axes: Axes, table: pd.DataFrame) -> None:
    """The mean over domains in bold over each domain, named at the line's end."""
    tidy(axes, "R@1 on val, merged index", grid="y", pad=PAD)
    domains = [column.partition("/")[2] for column in table if column.startswith(f"{VAL}/")]
    for domain, color in domain_colors(domains).items():
        _line(axes, table[f"{VAL}/{domain}"], color, width=1, label=domain)
    if VAL in table:
        _line(axes, table[VAL], INK, width=2.6, label="mean")
        axes.set_ylim(0, 1)
        axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        axes.text(0.5, 0.5, "no val split", transform=axes.transAxes, ha="center", color=MUTED)


def _divide(axes: Axes, stage: pd.Series) -> None:
    """A dotted line where a stage ends and, above the panel, the stages' names."""
    spans = stage.reset_index().groupby("stage", sort=False)["step"].agg(["min", "max"])
    if len(spans) < 2:
        return
    for name, span in spans.iterrows():
        axes.axvline(span["max"], color=MUTED, linewidth=1, linestyle=":")
        at = {"x": (span["min"] + span["max"]) / 2, "y": 1.01}
        axes.text(**at, s=name, transform=axes.get_xaxis_transform(), ha="center", va="bottom",
                  fontsize=8, color=MUTED)  # fmt: skip
