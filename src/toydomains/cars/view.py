"""Views of cars on the road, seen from the side."""

from __future__ import annotations

import numpy as np

from toydomains.cars.parts import built
from toydomains.cars.spec import Car
from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import outdoors
from toydomains.kit.solid import Camera


def view_car(car: Car, rng: np.random.Generator, role: str) -> View:
    """Park it outdoors, and show its flank with a little of its front or its rear."""
    size = frame(rng, (1.33, 1.5, 1.25, 1.0, 1.4, 0.9))
    scene = outdoors(rng, size, (0.5, 0.66), ("asphalt", "paving", "sand", "grass", "snow"))
    camera = Camera(float(rng.uniform(-52, 52)), float(rng.uniform(4, 16)), 6.0)
    solids = built(car)
    pose = Pose(scale=(0.82, 1.06), turn_deg=3, tilt=0.0, shift=0.07, ground=(0.78, 0.96))
    return portrait(rng, scene, solids, camera, pose, lean=0.2, obstacles=0.35)
