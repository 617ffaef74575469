"""Views of flat garments, seen from above."""

from __future__ import annotations

import numpy as np

from toydomains.apparel.parts import draw_bottom, draw_top, folds
from toydomains.apparel.spec import TOPS, Garment
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import tabletop


def view_garment(g: Garment, rng: np.random.Generator, role: str) -> View:
    """Place it on a surface; its sleeves or legs vary a little in every view."""
    size = frame(rng)
    scene = tabletop(rng, size)
    extent = (-0.1, -0.02, 1.1, 1.12) if g.cut in TOPS else (0.05, 0.0, 0.95, 1.05)
    pose = Pose(scale=(0.86, 1.12), turn_deg=22, tilt=0.08, shift=0.07)
    pen = blank(size, placed(rng, extent, size, pose))
    (draw_top if g.cut in TOPS else draw_bottom)(g, pen, rng)
    folds(pen, rng)
    return develop(rng, scene, pen.image, lift_px=4)
