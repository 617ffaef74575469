"""Views of furniture indoors."""

from __future__ import annotations

import numpy as np

from toydomains.furniture.pieces import FURNITURE
from toydomains.furniture.spec import Furniture
from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import room
from toydomains.kit.solid import Camera


def view_furniture(f: Furniture, rng: np.random.Generator, role: str) -> View:
    """Place it indoors, seen from somewhere in front."""
    size = frame(rng)
    scene = room(rng, size, (0.52, 0.7))
    camera = Camera(float(rng.uniform(-36, 36)), float(rng.uniform(6, 28)), 5.0)
    solids = FURNITURE[f.kind](f)
    pose = Pose(scale=(0.78, 1.0), turn_deg=3, tilt=0.0, shift=0.08, ground=(0.84, 0.98))
    return portrait(rng, scene, solids, camera, pose, obstacles=0.3)
