"""Views of shops between their neighbours, from across the street."""

from __future__ import annotations

import numpy as np

from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import outdoors
from toydomains.storefronts.parts import awning, house, neighbours, shop, sign, street
from toydomains.storefronts.spec import Storefront


def view_storefront(s: Storefront, rng: np.random.Generator, role: str) -> View:
    """Show it from across the street, at any hour."""
    size = frame(rng, (1.0, 1.33, 1.25, 0.8, 1.0, 0.75))
    scene = outdoors(rng, size, (0.7, 0.84), ("paving", "asphalt"))
    pose = Pose(scale=(0.78, 1.2), turn_deg=3, tilt=0.13, shift=0.1, ground=(0.84, 0.97))
    pen = blank(size, placed(rng, (0.0, 0.0, 1.0, 1.04), size, pose))
    neighbours(pen, rng)
    house(s, pen)
    sign(s, pen)
    shop(s, pen, scene.place in ("at night", "at dusk"))
    awning(s, pen)
    street(s, pen)
    return develop(rng, scene, pen.image, obstacles=0.5)
