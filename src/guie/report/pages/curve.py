"""The course of a greedy selection as points in a drawing."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from matplotlib.ticker import MaxNLocator

WIDTH, HEIGHT = 480, 220  # units of the drawing
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 16, 34  # margins
TICKS = 4


class Point(NamedTuple):
    """A step: its number, where it stands, and how far one standard error reaches."""

    step: int
    change: str
    score: float
    x: float
    y: float
    high: float
    low: float


class Curve(NamedTuple):
    points: list[Point]
    ticks: list[tuple[str, float]]  # score, y


def curve(earned: pd.DataFrame) -> Curve:
    """Score after each accepted step, with the standard error of the step's gain.

    Args:
        earned: what `guie.curation.selection.earned.earned` returns.
    """
    steps = earned[earned["step"].notna()]
    if steps.empty:
        return Curve([], [])
    score = steps["score"].astype(float)
    error = steps["standard_error"].astype(float).fillna(0.0)
    lowest, highest = (score - error).min(), (score + error).max()
    room = 0.05 * (highest - lowest) or 0.01  # one step alone has no extent
    lowest, highest = lowest - room, highest + room

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (highest - value) / (highest - lowest), 1)

    span = (WIDTH - LEFT - RIGHT) / max(len(steps) - 1, 1)
    start = LEFT if len(steps) > 1 else LEFT + span / 2
    points = [
        Point(int(number), change, value, round(start + place * span, 1), y(value),
              y(value + spread), y(value - spread))
        for place, (number, change, value, spread) in enumerate(
            zip(steps["step"], steps["change"], score, error, strict=True)
        )
    ]  # fmt: skip
    ticks = MaxNLocator(TICKS).tick_values(lowest, highest)
    shown = [tick for tick in ticks if lowest <= tick <= highest]
    return Curve(points, [(f"{tick:g}", y(tick)) for tick in shown])
