"""Views of framed paintings on a wall."""

from __future__ import annotations

import numpy as np

from toydomains.artwork.paintings import PAINTERS
from toydomains.artwork.spec import FRAMES, Painting
from toydomains.kit.canvas import Pen
from toydomains.kit.colour import lit
from toydomains.kit.outline import rect
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import room


def view_painting(p: Painting, rng: np.random.Generator, role: str) -> View:
    """Hang it on a wall; some glass has a glare."""
    size = frame(rng)
    scene = room(rng, size, (0.86, 1.15))
    pose = Pose(scale=(0.74, 1.1), turn_deg=6, tilt=0.14, shift=0.08)
    edge = FRAMES[p.frame][1] + (0.1 if p.mat else 0.0)
    extent = (-edge, -edge, p.shape + edge, 1 + edge)
    pen = blank(size, placed(rng, extent, size, pose))
    _frame(p, pen, extent)
    with pen.inside(rect(0, 0, p.shape, 1)) as canvas:
        PAINTERS[p.genre](canvas, np.random.default_rng(p.seed), p)
    if rng.random() < 0.35:
        x = float(rng.uniform(0, 0.6)) * p.shape
        glare = np.array([(x, 0), (x + 0.25, 0), (x + 0.05, 1), (x - 0.2, 1)])
        with pen.inside(rect(0, 0, p.shape, 1)) as glass:
            glass.fill(glare, "white", alpha=0.16)
    return develop(rng, scene, pen.image, lift_px=6, obstacles=0.3)


def _frame(p: Painting, pen: Pen, extent: tuple[float, float, float, float]) -> None:
    colour, thick = FRAMES[p.frame]
    x0, y0, x1, y1 = extent
    pen.fill(rect(x0, y0, x1, y1), lit(colour, 1.12), lit(colour, 0.85))
    for inset, gain in ((0.25, 0.8), (0.4, 1.2), (0.8, 0.75)):
        t = thick * inset
        pen.fill(rect(x0 + t, y0 + t, x1 - t, y1 - t), lit(colour, gain))
    if p.mat:
        pen.fill(rect(x0 + thick, y0 + thick, x1 - thick, y1 - thick), "white")
