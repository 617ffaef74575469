"""Views of dishes on a set table, seen from above."""

from __future__ import annotations

import numpy as np

from toydomains.dishes.plating import serve
from toydomains.dishes.spec import Dish
from toydomains.dishes.tableware import cutlery, vessel
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import TABLES, tabletop


def view_dish(d: Dish, rng: np.random.Generator, role: str) -> View:
    """Serve it on a table, seen from above."""
    size = frame(rng)
    scene = tabletop(rng, size, tuple(t for t in TABLES if t[0] != "grass"))
    squash = float(rng.uniform(0.68, 1.0))
    pose = Pose(scale=(0.88, 1.2), turn_deg=10, tilt=0.04, shift=0.07)
    matrix = placed(rng, (-0.56, -0.56 * squash, 0.56, 0.56 * squash), size, pose)
    matrix = matrix @ np.diag([1, squash, 1])
    pen = blank(size, matrix)
    cutlery(pen, rng)
    vessel(d, pen.at(0, 0, 1, float(rng.uniform(-40, 40))), 0.09 * (1 - squash))
    serve(d, pen.at(0, 0, 1, float(rng.uniform(0, 360))), rng)
    return develop(rng, scene, pen.image, lift_px=5)
