"""Outlines as float arrays [N, 2] in an object's own units, x right and y down; and their warps."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

Points: TypeAlias = np.ndarray
Outline: TypeAlias = Points | Sequence[tuple[float, float]]
Warp: TypeAlias = Callable[[np.ndarray], np.ndarray]  # [N, 2] -> [N, 2]
UNIT_QUAD = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])


def rect(x0: float, y0: float, x1: float, y1: float, radius: float = 0.0) -> Points:
    """The outline of a rectangle, its corners rounded by `radius`."""
    if not radius:
        return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    r = min(radius, abs(x1 - x0) / 2, abs(y1 - y0) / 2)
    centres = (
        (x1 - r, y0 + r, -90),
        (x1 - r, y1 - r, 0),
        (x0 + r, y1 - r, 90),
        (x0 + r, y0 + r, 180),
    )
    return np.concatenate([arc(x, y, r, r, start, start + 90, 5) for x, y, start in centres])


def arc(
    cx: float, cy: float, rx: float, ry: float, start_deg: float, stop_deg: float, steps: int = 16
) -> Points:
    """Points along an elliptic arc, clockwise on the screen from `start_deg` (0 is right)."""
    angle = np.radians(np.linspace(start_deg, stop_deg, steps))
    return np.stack([cx + rx * np.cos(angle), cy + ry * np.sin(angle)], axis=1)


def ellipse(cx: float, cy: float, rx: float, ry: float | None = None, steps: int = 28) -> Points:
    """The outline of an ellipse; a circle without `ry`."""
    return arc(cx, cy, rx, rx if ry is None else ry, 0, 360, steps)


def star(cx: float, cy: float, radius: float, tips: int = 5, inner: float = 0.45) -> Points:
    """A star with its first tip up; `inner` is the notches' share of the radius."""
    angle = np.pi * np.arange(2 * tips) / tips - np.pi / 2
    reach = np.where(np.arange(2 * tips) % 2 == 0, radius, radius * inner)
    return np.stack([cx + reach * np.cos(angle), cy + reach * np.sin(angle)], axis=1)


def smooth(points: Outline, steps: int = 5, closed: bool = True) -> Points:
    """A Catmull-Rom curve through the points, `steps` samples a span."""
    p = np.asarray(points, float)
    p = np.concatenate([p[-1:], p, p[:2]]) if closed else np.concatenate([p[:1], p, p[-1:]])
    a, b, c, d = p[:-3, None], p[1:-2, None], p[2:-1, None], p[3:, None]
    t = (np.arange(steps) / steps)[None, :, None]
    curve = b + t / 2 * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    curve = curve.reshape(-1, 2)
    return curve if closed else np.concatenate([curve, p[-2:-1]])


def mirrored(half: Outline, axis: float = 0.5) -> Points:
    """A symmetric outline from its right half, listed from the top to the bottom."""
    right = np.asarray(half, float)
    return np.concatenate([right, (right * (-1, 1) + (2 * axis, 0))[::-1]])


def turned(points: Outline, angle_deg: float, about: tuple[float, float]) -> Points:
    """The points turned clockwise (on the screen) about a pivot."""
    a = np.radians(angle_deg)
    matrix = np.array([(np.cos(a), np.sin(a)), (-np.sin(a), np.cos(a))])
    return (np.asarray(points) - about) @ matrix + about


def around(
    outline: Outline, number: int, about: tuple[float, float] = (0, 0), start: float = 0
) -> Iterator[Points]:
    """The outline and its copies, evenly turned about a pivot; the first by `start` of a step."""
    for i in range(number):
        yield turned(outline, 360 * (i + start) / number, about)


def homography(source: Outline, target: Outline) -> np.ndarray:
    """Return the 3x3 matrix that maps four points to four others (direct linear transform)."""
    rows, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
        values += [u, v]
    eight = np.linalg.solve(np.array(rows, float), np.array(values, float))
    return np.append(eight, 1).reshape(3, 3)


def projective(matrix: np.ndarray) -> Warp:
    """Return the warp of a 3x3 matrix."""

    def warp(points: np.ndarray) -> np.ndarray:
        mapped = points @ matrix[:, :2].T + matrix[:, 2]
        return mapped[:, :2] / mapped[:, 2:]

    return warp
