"""What a CLIP's labels are worth, as points in a drawing: precision over coverage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from guie.report.pages.curve import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Calibration(NamedTuple):
    """Lines as (x, y) points, ticks as (label, place)."""

    precision: list[tuple[float, float]]
    at_least: list[tuple[float, float]]
    x_ticks: list[tuple[str, float]]
    y_ticks: list[tuple[str, float]]


def calibration(curve: Sequence[dict[str, Any]]) -> Calibration:
    """The lines of a calibration curve.

    Args:
        curve: rows of `guie.curation.labels.calibration.thinned`, from strict to lax.
    """
    return Calibration(
        precision=[(_x(row["coverage"]), _y(row["precision"])) for row in curve],
        at_least=[(_x(row["coverage"]), _y(row["at_least"])) for row in curve],
        x_ticks=[(f"{share:.0%}", _x(share)) for share in SHARES],
        y_ticks=[(f"{share:.0%}", _y(share)) for share in SHARES],
    )


def _x(share: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * share, 1)


def _y(share: float) -> float:
    return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - share), 1)
