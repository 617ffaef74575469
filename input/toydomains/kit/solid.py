"""Render convex solids in 3D with a painter's algorithm, for buildings, cars and cartons.

World axes: x right, y up, z towards the viewer, the ground at y = 0. Back faces are dropped, which
orders the faces of one convex solid. Solids are ordered by the axis planes that separate their
bounding boxes: an exact painter's order if they do not overlap. Overlapping ones go by distance.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from toydomains.kit.colour import lit
from toydomains.kit.outline import Outline, Points
from toydomains.kit.pen import Colour, Pen

SUN = np.array([-0.45, 0.75, 0.5]) / np.linalg.norm([-0.45, 0.75, 0.5])


@dataclass
class Face:
    """A planar face [N, 3], anticlockwise seen from outside, with flat decals in its own plane."""

    points: np.ndarray
    colour: Colour | None  # None: only the decals show
    decals: list[tuple[Outline, Colour]] = field(default_factory=list)

    def decal(self, outline: Outline, colour: Colour) -> None:
        """Paint an outline given in the face's unit square (u right, v down, from outside)."""
        self.decals.append((outline, colour))

    def lift(self, outline: Points) -> np.ndarray:
        """Map unit-square points to world points, bilinearly (the face is a quadrilateral)."""
        low_left, low_right, top_right, top_left = self.points
        u, v = outline[:, :1], outline[:, 1:]
        top = top_left + (top_right - top_left) * u
        return top + (low_left + (low_right - low_left) * u - top) * v


@dataclass
class Solid:
    """A convex solid: its faces."""

    faces: list[Face]

    def __post_init__(self) -> None:
        points = np.concatenate([face.points for face in self.faces])
        self.low, self.high = points.min(axis=0), points.max(axis=0)


Solids: TypeAlias = Iterator[Solid]


@dataclass(frozen=True)
class Camera:
    """A camera that looks at the origin from `distance`, turned by `yaw_deg`, raised by `pitch_deg`."""

    yaw_deg: float
    pitch_deg: float
    distance: float = 6.0

    @cached_property
    def rotation(self) -> np.ndarray:
        """The rotation from world axes to camera axes, [3, 3]."""
        yaw, pitch = np.radians(self.yaw_deg), np.radians(self.pitch_deg)
        about_y = np.array(
            [(np.cos(yaw), 0, -np.sin(yaw)), (0, 1, 0), (np.sin(yaw), 0, np.cos(yaw))]
        )
        about_x = np.array(
            [(1, 0, 0), (0, np.cos(pitch), -np.sin(pitch)), (0, np.sin(pitch), np.cos(pitch))]
        )
        return about_x @ about_y

    @property
    def position(self) -> np.ndarray:
        """The camera's position in the world."""
        return self.rotation.T @ np.array([0.0, 0.0, self.distance])

    def project(self, points: np.ndarray) -> Points:
        """Project world points [N, 3] to the picture plane [N, 2] (y down)."""
        turned = points @ self.rotation.T
        return turned[:, :2] * (1, -1) * self.distance / (self.distance - turned[:, 2:])


def box(low: Sequence[float], high: Sequence[float], colour: Colour) -> Solid:
    """Return an axis-aligned box; its faces in the order front, right, back, left, top, bottom."""
    (x0, y0, z0), (x1, y1, z1) = low, high
    corners = np.array(
        [(x0, y0, z1), (x1, y0, z1), (x1, y0, z0), (x0, y0, z0),
         (x0, y1, z1), (x1, y1, z1), (x1, y1, z0), (x0, y1, z0)]
    )  # fmt: skip
    order = ((0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7), (4, 5, 6, 7), (3, 2, 1, 0))
    return Solid([Face(corners[list(ids)], colour) for ids in order])


def sheet(low: Sequence[float], high: Sequence[float]) -> tuple[Face, Face]:
    """Return invisible sheets for decals in the xy plane at z = low[2] (facing away) and high[2]."""
    (x0, y0, z0), (x1, y1, z1) = low, high
    near = Face(np.array([(x0, y0, z1), (x1, y0, z1), (x1, y1, z1), (x0, y1, z1)], float), None)
    far = Face(np.array([(x1, y0, z0), (x0, y0, z0), (x0, y1, z0), (x1, y1, z0)], float), None)
    return far, near


def turning(
    x: float, z: float, profile: Sequence[tuple[float, float]], colour: Colour, sides: int = 14
) -> Solid:
    """Return a convex turned body: (radius, height) rings from the bottom up; 4 sides make it square."""
    # Half a step off, so that four sides are parallel to the axes.
    angle = 2 * np.pi * (np.arange(sides) + 0.5) / sides
    rings, faces = [], []
    for radius, y in profile:
        reach = max(radius, 1e-3) / (np.cos(np.pi / sides) if sides == 4 else 1)
        ring = (x + reach * np.sin(angle), np.full(sides, y), z + reach * np.cos(angle))
        rings.append(np.stack(ring, axis=1))
    for lower, upper in zip(rings, rings[1:], strict=False):
        for i in range(sides):
            j = (i + 1) % sides
            faces.append(Face(np.array([lower[i], lower[j], upper[j], upper[i]]), colour))
    return Solid([*faces, Face(rings[-1], colour), Face(rings[0][::-1], colour)])


def extruded(profile: Points, low: float, high: float, colour: Colour) -> Solid:
    """Sweep a convex outline (x, y), anticlockwise with y up, along z."""
    count = len(profile)
    near = np.column_stack([profile, np.full(count, high)])
    far = np.column_stack([profile, np.full(count, low)])
    sides = [
        Face(np.array([near[i], far[i], far[(i + 1) % count], near[(i + 1) % count]]), colour)
        for i in range(count)
    ]
    return Solid([Face(near, colour), Face(far[::-1], colour), *sides])


def painters_order(solids: Sequence[Solid], eye: np.ndarray) -> list[int]:
    """Return indices from farthest to nearest: i before j if a plane puts j on the eye's side."""
    low = np.array([solid.low for solid in solids])
    high = np.array([solid.high for solid in solids])
    behind = np.zeros((len(solids), len(solids)), bool)
    in_front = np.zeros_like(behind)
    for axis in range(3):
        apart = high[:, None, axis] <= low[None, :, axis] + 1e-6
        # A plane decides only if the eye is beyond it.
        behind |= apart & (eye[axis] > low[None, :, axis])
        in_front |= apart & (eye[axis] < high[:, None, axis])
    before = (behind | in_front.T) & ~(behind.T | in_front)
    distance = np.linalg.norm((low + high) / 2 - eye, axis=1)
    touching = ((low[:, None] < high[None]) & (high[:, None] > low[None])).all(axis=2)
    before |= touching & (distance[:, None] > distance[None])
    order, waiting, blockers = [], np.ones(len(solids), bool), before.sum(axis=0)
    while waiting.any():
        # In a cycle, the least blocked solid is drawn first.
        free = waiting & (blockers == blockers[waiting].min())
        order.append(int(np.argmax(np.where(free, distance, -1))))
        waiting[order[-1]] = False
        blockers = blockers - before[order[-1]]
    return order


def paint(pen: Pen, solids: Sequence[Solid], camera: Camera) -> None:
    """Draw the solids, shaded by one sun, far ones first."""
    faces = [f for i in painters_order(solids, camera.position) for f in solids[i].faces]
    starts = np.cumsum([0, *(len(face.points) for face in faces)])
    corners = np.concatenate([face.points for face in faces])
    flat = camera.project(corners)
    pixels = pen.warp(flat).tolist()
    first = starts[:-1]
    (ux, uy), (vx, vy) = (flat[first + 1] - flat[first]).T, (flat[first + 2] - flat[first + 1]).T
    visible = ux * vy - uy * vx < -1e-12  # anticlockwise on the screen, where y points down
    normal = np.cross(corners[first + 1] - corners[first], corners[first + 2] - corners[first + 1])
    cosine = normal @ SUN / (np.linalg.norm(normal, axis=-1) + 1e-12)
    # Lambert's law plus ambient light.
    gains = (0.72 + 0.36 * np.maximum(cosine, -0.2)).tolist()
    for face, start, seen, gain in zip(faces, starts.tolist(), visible, gains, strict=False):
        if not seen:
            continue
        if face.colour is not None:
            pen.fill_pixels(pixels[start : start + len(face.points)], lit(face.colour, gain))
        if face.decals:
            lifted = face.lift(np.concatenate([outline for outline, _ in face.decals]))
            places = pen.warp(camera.project(lifted)).tolist()
        for outline, colour in face.decals:
            pen.fill_pixels(places[: len(outline)], lit(colour, gain))
            places = places[len(outline) :]


def bounds(solids: Iterable[Solid], camera: Camera) -> tuple[float, float, float, float]:
    """Return the bounding box (x0, y0, x1, y1) of the solids in the picture plane."""
    points = np.concatenate([face.points for solid in solids for face in solid.faces])
    flat = camera.project(points)
    return (*flat.min(axis=0).tolist(), *flat.max(axis=0).tolist())


def cast_shadow(pen: Pen, solids: Iterable[Solid], camera: Camera, lean: float) -> None:
    """Draw in black the shadow that the sun casts on the ground."""
    faces = [face.points for solid in solids for face in solid.faces]
    corners = np.concatenate(faces)
    ground = corners - corners[:, 1:2] * (-lean, 1.0, lean * 0.4)
    pixels, start = pen.warp(camera.project(ground)).tolist(), 0
    for points in faces:
        pen.fill_pixels(pixels[start : start + len(points)], (0, 0, 0))
        start += len(points)
