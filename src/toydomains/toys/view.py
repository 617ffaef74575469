"""Views of toys on an indoor floor."""

from __future__ import annotations

import numpy as np

from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import room
from toydomains.kit.solid import Camera
from toydomains.toys.spec import Toy
from toydomains.toys.toyshop import TOYS

FLOORS = (
    ("carpet", "on a red rug"),
    ("pale wood", "on a pale wooden floor"),
    ("oak", "on a wooden floor"),
    ("yellow paper", "on a yellow mat"),
    ("blue paper", "on a blue mat"),
    ("pink paper", "on a pink mat"),
    ("checked cloth", "on a checked rug"),
    ("blue cloth", "on a blue rug"),
)


def view_toy(t: Toy, rng: np.random.Generator, role: str) -> View:
    """Place it on the floor, seen from above."""
    size = frame(rng)
    scene = room(rng, size, (0.3, 0.55), FLOORS)
    camera = Camera(float(rng.uniform(-42, 42)), float(rng.uniform(8, 34)), 4.5)
    solids = TOYS[t.kind](t)
    pose = Pose(scale=(0.78, 1.0), turn_deg=5, tilt=0.0, shift=0.08, ground=(0.82, 0.98))
    return portrait(rng, scene, solids, camera, pose, obstacles=0.25)
