"""Take the picture: camera position, shadow, occluders, light, noise."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from toydomains.kit.colour import jitter
from toydomains.kit.outline import ellipse, homography, projective, rect, smooth, turned
from toydomains.kit.pen import Box, Pen, pick
from toydomains.kit.scene import Scene, Size
from toydomains.kit.solid import Camera, Solid, bounds, cast_shadow, paint

SHAPES = (1.0, 1.0, 0.75, 0.8, 1.33, 1.25, 0.67, 1.5)  # width over height
LIGHTS = (
    ("in soft daylight", (1.0, 1.0, 1.0)),
    ("in bright light", (1.12, 1.11, 1.09)),
    ("in warm light", (1.07, 0.97, 0.84)),
    ("in cool light", (0.91, 0.98, 1.08)),
    ("in dim light", (0.72, 0.71, 0.75)),
    ("in evening light", (1.02, 0.88, 0.84)),
)


@dataclass(frozen=True)
class View:
    """One finished picture of a class and the words that describe how it was taken."""

    image: Image.Image
    place: str
    light: str = ""
    medium: str = ""


def frame(rng: np.random.Generator, shapes: tuple[float, ...] = SHAPES) -> Size:
    """Draw a picture size at twice the final resolution; the final longer side is 96 to 128 px."""
    longer, shape = int(rng.integers(96, 129)), pick(rng, shapes)
    w, h = (longer, round(longer / shape)) if shape >= 1 else (round(longer * shape), longer)
    return 2 * w, 2 * h


@dataclass(frozen=True)
class Pose:
    """The limits of a view's departure from the frontal one."""

    scale: tuple[float, float]  # of the largest that fits
    turn_deg: float
    tilt: float  # corner displacement, share of the size
    shift: float  # share of the frame
    ground: tuple[float, float] | None = None  # height of the foot, share of the height


def placed(rng: np.random.Generator, extent: Box, size: Size, pose: Pose) -> np.ndarray:
    """Return the homography [3, 3] that puts the object's box somewhere in the frame."""
    x0, y0, x1, y1 = extent
    (w, h), (bw, bh) = size, (x1 - x0, y1 - y0)
    corners = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], float)
    room = h * (0.97 if pose.ground is None else pose.ground[1])
    unit = min(w / bw, room / bh) * float(rng.uniform(*pose.scale))
    half = np.array([bw, bh]) * unit / 2
    target = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * half
    target = target * (1 + rng.uniform(-pose.tilt, pose.tilt, (4, 2)))
    target = turned(target, rng.uniform(-1, 1) * pose.turn_deg, (0, 0))
    centre = np.array([w, h]) * (0.5 + rng.uniform(-pose.shift, pose.shift, 2))
    if pose.ground is not None:
        # The top should stay in the frame, even if the foot is then lower.
        foot = max(h * float(rng.uniform(*pose.ground)), min(0.98 * h, np.ptp(target[:, 1])))
        centre[1] = foot - target[:, 1].max()
    return homography(corners, target + centre)


def blank(size: Size, matrix: np.ndarray) -> Pen:
    """Return a pen on a transparent layer."""
    return Pen(Image.new("RGBA", size), projective(matrix))


def stage(
    rng: np.random.Generator,
    size: Size,
    solids: list[Solid],
    camera: Camera,
    pose: Pose,
    lean: float,
) -> tuple[Pen, Image.Image]:
    """Return a pen that has painted the solids in the frame, and their shadow, `lean` long, as a layer."""
    matrix = placed(rng, bounds(solids, camera), size, pose)
    pen, shadow = blank(size, matrix), blank(size, matrix)
    cast_shadow(shadow, solids, camera, lean)
    paint(pen, solids, camera)
    return pen, shadow.image


def portrait(
    rng: np.random.Generator,
    scene: Scene,
    solids: Iterable[Solid],
    camera: Camera,
    pose: Pose,
    lean: float,
) -> View:
    """Photograph solids on the scene's ground."""
    pen, shadow = stage(rng, scene.image.size, list(solids), camera, pose, lean)
    return develop(rng, scene, pen.image, shadow=shadow, obstacles=0.35)


def develop(
    rng: np.random.Generator,
    scene: Scene,
    layer: Image.Image,
    *,
    shadow: Image.Image | None = None,
    lift_px: float = 5.0,
    obstacles: float = 0.25,
) -> View:
    """Put the layer and its soft shadow on the scene, light it, reduce it, add noise.

    Without a `shadow` layer the shadow is the object's outline, `lift_px` away.
    """
    image = scene.image
    _drop_shadow(rng, image, shadow or layer, 0.0 if shadow else lift_px)
    image.paste(layer, (0, 0), layer)
    if rng.random() < obstacles:
        (_branch if scene.tint is None or rng.random() < 0.5 else _passer_by)(rng, image)
    words, tint = ("", scene.tint) if scene.tint else pick(rng, LIGHTS)
    return View(_expose(rng, image.reduce(2), tint), scene.place, words)


def _drop_shadow(
    rng: np.random.Generator, image: Image.Image, layer: Image.Image, lift_px: float
) -> None:
    alpha = layer.getchannel("A").reduce(4).point(lambda a: a * 0.5)
    alpha = alpha.filter(ImageFilter.GaussianBlur(1.2 + lift_px / 8))
    alpha = alpha.resize(image.size, Image.Resampling.BILINEAR)
    side = 1 if rng.random() < 0.5 else -1
    image.paste((24, 20, 40), (round(side * lift_px), round(1.2 * lift_px)), alpha)


def _branch(rng: np.random.Generator, image: Image.Image) -> None:
    """Draw a leafy twig that enters from a side, out of focus."""
    w, h = image.size
    layer = Image.new("RGBA", image.size)
    start = np.array([pick(rng, (-0.05, 1.05)) * w, rng.uniform(0, 1) * h])
    toward = (np.array([w, h]) * rng.uniform(0.3, 0.7, 2) - start) * rng.uniform(0.5, 0.9)
    pen = Pen(layer, lambda points: points)
    bend = np.array([-toward[1], toward[0]]) * rng.uniform(-0.2, 0.2)
    knots = np.stack([start, start + toward / 2 + bend, start + toward])
    stem = smooth(knots, closed=False)
    pen.line(stem, (86, 74, 56), 3)
    green = jitter(rng, pick(rng, ("green", "olive", "dark green")), 0.2)
    angle = float(np.degrees(np.arctan2(toward[1], toward[0])))
    for i, point in enumerate(stem[2:]):
        leaf = ellipse(float(point[0]) + 13, float(point[1]), 15, 6)
        side = angle + (48 if i % 2 else -48) + rng.normal(0, 10)
        pen.fill(turned(leaf, side, tuple(point)), jitter(rng, green, 0.15))
    layer = layer.filter(ImageFilter.BoxBlur(1))
    _drop_shadow(rng, image, layer, 6)
    image.paste(layer, (0, 0), layer)


def _passer_by(rng: np.random.Generator, image: Image.Image) -> None:
    """Draw a passer-by or a lamp post in front."""
    w, h = image.size
    pen = Pen(image, projective(np.array([(h, 0, rng.uniform(0, 1) * w), (0, h, 0), (0, 0, 1.0)])))
    dark = jitter(rng, pick(rng, ("charcoal", "navy", "brown", "dark green")), 0.15)
    if rng.random() < 0.4:
        pen.fill(rect(-0.008, 0.1, 0.008, 1.0), dark)
        pen.fill(rect(-0.02, 0.9, 0.02, 1.0), dark)
        pen.fill(ellipse(0, 0.1, 0.03, 0.035), (255, 236, 190))
        return
    top = rng.uniform(0.58, 0.72)
    coat = [(-0.03, 0.0), (0.03, 0.0), (0.05, 0.06), (0.055, 0.24), (-0.055, 0.24), (-0.05, 0.06)]
    pen = pen.at(0, top, 1.0)
    pen.fill(rect(-0.035, 0.2, -0.008, 0.42), jitter(rng, "charcoal"))
    pen.fill(rect(0.008, 0.2, 0.035, 0.42), jitter(rng, "charcoal"))
    pen.fill(smooth(coat), jitter(rng, pick(rng, ("red", "mustard", "navy", "teal", "tan")), 0.1))
    pen.fill(ellipse(0, -0.035, 0.028, 0.034), (224, 178, 148))
    pen.fill(ellipse(0, -0.05, 0.03, 0.025), dark)


def _expose(
    rng: np.random.Generator, image: Image.Image, tint: tuple[float, float, float]
) -> Image.Image:
    """Apply light fall-off across the picture, contrast, sensor noise and a little blur."""
    if rng.random() < 0.2:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.6)))
    pixels = np.asarray(image, np.float32) / 255
    h, w = pixels.shape[:2]
    angle, fall = rng.uniform(0, 2 * np.pi), rng.uniform(0.02, 0.24)
    y, x = np.linspace(-1, 1, h)[:, None], np.linspace(-1, 1, w)[None]
    ramp = 1 + fall * (np.cos(angle) * x + np.sin(angle) * y) - 0.06 * (x * x + y * y)
    pixels = pixels * ramp[..., None].astype(np.float32) * np.asarray(tint, np.float32)
    pixels = pixels * np.float32(rng.uniform(0.94, 1.06)) + np.float32(rng.uniform(-0.02, 0.03))
    grain = np.float32(rng.uniform(0.002, 0.016))
    pixels += rng.standard_normal(pixels.shape, dtype=np.float32) * grain
    return Image.fromarray((np.clip(pixels, 0, 1) * 255).astype(np.uint8))
