"""What the domains draw with: pens and solids."""

import numpy as np
import pytest
from PIL import Image

from toydomains.kit.pen import Pen
from toydomains.kit.solid import Camera, bounds, box, paint


def test_text_fills_its_box():
    image = Image.new("RGBA", (200, 100))
    Pen(image, lambda points: points * 100).text("HAT", (0.5, 0.25, 1.5, 0.75), "black")
    x0, y0, x1, y1 = image.getbbox()
    assert 48 <= x0 < x1 <= 152 and 23 <= y0 < y1 <= 77
    assert max(x1 - x0, 2 * (y1 - y0)) > 90


def nearest_box(origin, rays, boxes):
    """The box that each ray meets first, by the slab method: a slow twin of the painter."""
    first, best = np.full(len(rays), -1), np.full(len(rays), np.inf)
    for i, solid in enumerate(boxes):
        near, far = (solid.low - origin) / rays, (solid.high - origin) / rays
        enter, leave = np.minimum(near, far).max(axis=1), np.maximum(near, far).min(axis=1)
        closer = (enter < leave) & (enter > 0) & (enter < best)
        first[closer], best[closer] = i, enter[closer]
    return first


@pytest.mark.parametrize("seed", range(4))
def test_solids_hide_one_another_as_rays_say(seed):
    rng = np.random.default_rng(seed)
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0), (0, 250, 250), (250, 0, 250)]
    cells = rng.permutation(27)[:6]
    boxes = []
    for cell, colour in zip(cells, colours, strict=True):
        low = np.array([cell % 3, cell // 3 % 3, cell // 9]) * 0.5 - 0.75 + rng.uniform(0, 0.1, 3)
        boxes.append(box(low, low + rng.uniform(0.2, 0.4, 3), colour))
    camera = Camera(float(rng.uniform(-60, 60)), float(rng.uniform(-10, 40)), 5.0)
    x0, y0, x1, y1 = bounds(boxes, camera)
    image = Image.new("RGBA", (200, 200))
    paint(Pen(image, lambda p: (p - (x0, y0)) / (x1 - x0, y1 - y0) * 200), boxes, camera)
    pixels = rng.integers(0, 200, (400, 2))
    flat = (pixels + 0.5) / 200 * (x1 - x0, y1 - y0) + (x0, y0)
    # A picture point (u, v) is at depth 0 in camera axes, whose rows are the rotation's.
    targets = np.column_stack([flat * (1, -1), np.zeros(400)]) @ camera.rotation
    expected = nearest_box(camera.position, targets - camera.position, boxes)
    painted = np.asarray(image)[pixels[:, 1], pixels[:, 0]]
    hue = painted[:, :3].astype(float) / np.maximum(painted[:, :3].max(axis=1, keepdims=True), 1)
    distance = np.abs(hue[:, None] - np.array(colours) / 250).sum(axis=2)
    seen = np.where(painted[:, 3] > 0, distance.argmin(axis=1), -1)
    assert (seen == expected).mean() > 0.97 and len(set(expected)) > 3
