"""Views of packages on a counter or a shelf."""

from __future__ import annotations

import numpy as np

from toydomains.kit.photo import View, develop, frame
from toydomains.kit.scene import room
from toydomains.packages.shapes import carton, pouch, vessel
from toydomains.packages.spec import Package

COUNTERS = (
    ("oak", "on a wooden shelf"),
    ("walnut", "on a dark wooden shelf"),
    ("white marble", "on a marble counter"),
    ("slate", "on a slate counter"),
    ("checked cloth", "on a checked tablecloth"),
    ("linen", "on a linen tablecloth"),
    ("terrazzo", "on a terrazzo counter"),
)


def view_package(p: Package, rng: np.random.Generator, role: str) -> View:
    """Place it in a kitchen or a shop, seen from the front."""
    size = frame(rng, (1.0, 0.75, 0.8, 0.67, 1.0, 1.25))
    scene = room(rng, size, (0.3, 0.55), COUNTERS)
    draw = {"box": carton, "carton": carton, "pouch": pouch}.get(p.form, vessel)
    layer, shadow = draw(p, rng, size)
    return develop(rng, scene, layer, shadow=shadow)
