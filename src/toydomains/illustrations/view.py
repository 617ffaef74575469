"""Views of pages with a drawing, in one of two styles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image

from toydomains.illustrations.figure import body, head
from toydomains.illustrations.setting import setting
from toydomains.illustrations.spec import Character
from toydomains.kit.canvas import Pen, pick, projective
from toydomains.kit.colour import jitter, rgb
from toydomains.kit.ink import InkPen
from toydomains.kit.photo import Pose, View, develop, frame, placed
from toydomains.kit.scene import Scene

INKS = ((34, 34, 48), (44, 38, 34), (36, 52, 96), (88, 50, 38))


def view_character(c: Character, rng: np.random.Generator, role: str) -> View:
    """Draw it on paper, a query in ink and the index in flat colour, and photograph the page."""
    ink = role == "query" or (role != "index" and rng.random() < 0.5)
    size = frame(rng, (1.0, 0.8, 0.75, 0.67, 0.9))
    pose = Pose(scale=(0.8, 1.08), turn_deg=9, tilt=0.05, shift=0.06)
    matrix = placed(rng, (-0.02, -0.06, 1.02, 1.3), size, pose)
    page = pick(rng, ("cream", "white", "tan")) if ink else c.palette[1]
    layer = Image.new("RGBA", size, (*jitter(rng, page, 0.04), 255))
    pen = Pen(layer, projective(matrix))
    if ink:
        pen = InkPen(layer, pen.warp, rng, rgb(page), pick(rng, INKS))
    setting(c, pen)
    body(c, pen)
    head(c, pen)
    shot = develop(rng, Scene(layer.convert("RGB"), f"on {page} paper"), layer, obstacles=0.12)
    return replace(shot, medium="an ink sketch of" if ink else "a flat colour print of")
