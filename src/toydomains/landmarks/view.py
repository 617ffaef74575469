"""Views of landmarks outdoors, at any hour."""

from __future__ import annotations

import numpy as np

from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import outdoors
from toydomains.kit.solid import Camera
from toydomains.landmarks.buildings import BUILDINGS
from toydomains.landmarks.spec import Landmark


def view_landmark(m: Landmark, rng: np.random.Generator, role: str) -> View:
    """Build it outdoors, seen from somewhere in front."""
    size = frame(rng, (1.0, 0.75, 0.8, 0.67, 1.25, 1.33))
    scene = outdoors(rng, size)
    camera = Camera(float(rng.uniform(-34, 34)), float(rng.uniform(2, 16)), 6.5)
    solids = BUILDINGS[m.kind](m)
    pose = Pose(scale=(0.76, 1.0), turn_deg=4, tilt=0.05, shift=0.08, ground=(0.8, 0.95))
    return portrait(rng, scene, solids, camera, pose, lean=0.3, obstacles=0.35)
