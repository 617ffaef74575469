"""Landmarks: towers, temples, castles and the like, from a grammar of storeys, roofs and openings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from toydomains.kit.colour import RGB, lit
from toydomains.kit.outline import arc, ellipse, rect, turned
from toydomains.kit.photo import Pose, View, frame, portrait
from toydomains.kit.scene import outdoors
from toydomains.kit.solid import Camera, Face, Solid, Solids, box, turning
from toydomains.kit.subject import Subject, a, chance, count, listed, one_of, real

STONES: dict[str, RGB] = {
    "sandstone": (222, 188, 140), "marble": (236, 232, 224), "brick": (182, 104, 82),
    "granite": (158, 160, 166), "plaster": (240, 214, 186), "basalt": (106, 104, 112),
}  # fmt: skip
ROOFS: dict[str, RGB] = {
    "copper": (110, 168, 148), "slate": (92, 98, 116), "terracotta": (196, 102, 72),
    "golden": (222, 180, 92), "blue": (78, 116, 168),
}  # fmt: skip
TOPS = ("domed", "pointed", "onion", "stepped", "flat")
WINDOWS = ("arched", "square", "round", "slit")
NIGHT = (64, 66, 88)  # behind windows


def crown(m: Landmark, x: float, y: float, z: float, r: float) -> Solids:
    """Yield a roof of half side `r` at height `y`."""
    low = y + 1.05 * r
    angles = np.radians(np.linspace(0, 84, 6))
    shapes: dict[str, list[list[tuple[float, float]]]] = {  # profiles, from the bottom up
        "domed": [
            [(r * np.cos(t), y + 1.05 * r * np.sin(t)) for t in angles],
            [(0.12 * r, low), (0.12 * r, low + 0.18 * r), (0.01, low + 0.6 * r)],
        ],
        "pointed": [[(1.12 * r, y), (0.01, y + 2.6 * r)]],
        "onion": [
            [(k * r, y + t * r) for k, t in ((0.75, 0.0), (1.1, 0.4), (1.05, 0.7), (0.6, 1.15))],
            [(k * r, y + t * r) for k, t in ((0.6, 1.15), (0.2, 1.5), (0.01, 2.1))],
        ],
        "stepped": [
            [(k * r, y + b * r), (k * r, y + t * r)]
            for k, b, t in ((1.05, 0.0, 0.35), (0.75, 0.35, 0.7), (0.42, 0.7, 1.2))
        ],
        "flat": [[(1.1 * r, y), (1.1 * r, y + 0.18 * r)]],
    }
    square = m.top in ("pointed", "stepped", "flat")
    for number, profile in enumerate(shapes[m.top]):
        finial = m.top == "domed" and number == 1
        colour, sides = (lit(m.cover, 0.85), 8) if finial else (m.cover, 4 if square else 14)
        yield turning(x, z, profile, colour, sides)
    side, low, high, steps = 0.18 * r, y + 0.18 * r, y + 0.42 * r, (-0.9, -0.3, 0.3, 0.9)
    for u, v in product(steps, steps) if m.top == "flat" else ():
        if max(abs(u), abs(v)) > 0.5:  # merlons are on the rim only
            px, pz = x + u * r, z + v * r
            yield box((px - side, low, pz - side), (px + side, high, pz + side), m.cover)


def openings(m: Landmark, face: Face, rows: int, columns: int) -> None:
    """Draw a grid of windows on a wall."""
    w, h = 0.24 / columns, 0.3 / rows
    for row, column in product(range(rows), range(columns)):
        u, v = (column + 0.5) / columns, 0.08 + (1 - 0.08) * (row + 0.5) / rows
        if m.windows == "arched":
            top = arc(u, v - 0.3 * h, w, 0.7 * h, 180, 360, 9)
            window = np.concatenate([top, [(u + w, v + h), (u - w, v + h)]])
        elif m.windows == "round":
            window = ellipse(u, v, 1.1 * w, 0.8 * h, 14)
        elif m.windows == "slit":
            window = rect(u - 0.4 * w, v - h, u + 0.4 * w, v + h)
        else:
            window = rect(u - w, v - 0.8 * h, u + w, v + 0.8 * h)
        face.decal(window, NIGHT)


def storey(
    m: Landmark, low: Sequence[float], high: Sequence[float], rows: int = 1, columns: int = 3
) -> Solid:
    """Return a block of wall with windows all round, and a course of darker stone if banded."""
    block = box(low, high, m.wall)
    for i in (0, 1, 3):
        for v in np.arange(rows) / rows if m.banded else ():
            block.faces[i].decal(rect(0, v, 1, v + 0.08 / rows), lit(m.wall, 0.72))
        openings(m, block.faces[i], rows, columns)
    return block


def plinth(m: Landmark, w: float, d: float, steps: int = 2) -> Solids:
    """Yield steps all round a ground plan of half-sizes `w` and `d`."""
    for i in range(steps):
        out = 0.07 * (steps - i)
        low, high = (-w - out, 0.05 * i, -d - out), (w + out, 0.05 * (i + 1), d + out)
        yield box(low, high, lit(m.wall, 0.92))


def clock(m: Landmark, face: Face, v: float, r: float, stretch: float) -> None:
    """Draw the clock of a landmark that has one; `stretch` makes it round on an oblong wall."""
    if m.clock:
        face.decal(ellipse(0.5, v, r * stretch, r, 18), lit(m.wall, 0.6))
        face.decal(ellipse(0.5, v, 0.82 * r * stretch, 0.82 * r, 18), (250, 246, 230))
        face.decal(rect(0.5 - 0.012, v - 0.6 * r, 0.5 + 0.012, v), (40, 40, 50))
        face.decal(rect(0.5, v - 0.012, 0.5 + 0.5 * r * stretch, v + 0.012), (40, 40, 50))


def gable(w: float, y: float, d: float, rise: float, m: Landmark) -> Solid:
    """Return a saddle roof whose gable faces the front."""
    a0, b0, c0, d0 = (-w, y, d), (w, y, d), (w, y, -d), (-w, y, -d)
    e, f = (0.0, y + rise, d), (0.0, y + rise, -d)
    pediment = Face(np.array([a0, b0, e]), lit(m.wall, 1.1))
    faces = [(b0, c0, f, e), (d0, a0, e, f), (c0, d0, f)]
    return Solid([pediment, *(Face(np.array(points), m.cover) for points in faces)])


def _tower(m: Landmark) -> Solids:
    w, step, y = 0.3 * m.wide, 0.46 * m.tall, 0.1
    yield from plinth(m, 0.34, 0.34)
    for i in range(m.storeys):
        block = storey(m, (-w, y, -w), (w, y + step, w), 1, 1 + m.columns % 3)
        for face in block.faces[:2] if i == m.storeys - 1 else ():
            clock(m, face, 0.5, 0.36, step / (2 * w))
        yield block
        low, high = (-w - 0.03, y + step, -w - 0.03), (w + 0.03, y + step + 0.04, w + 0.03)
        yield box(low, high, lit(m.wall, 1.12))
        y, w = y + (step + 0.04), w * 0.9
    yield from crown(m, 0, y, 0, w)


def _temple(m: Landmark) -> Solids:
    w, d, high = 0.95 * m.wide, 0.6, 0.85 * m.tall
    yield from plinth(m, w, d, 3)
    yield box((-w + 0.18, 0.15, -d + 0.14), (w - 0.18, high, d - 0.2), lit(m.wall, 0.72))
    r = 0.05 if m.columns > 5 else 0.065
    shape = [(1.15 * r, 0.15), (r, 0.2), (0.85 * r, high - 0.04), (1.2 * r, high)]
    for x in np.linspace(-w + 0.08, w - 0.08, m.columns):
        yield turning(x, d - 0.08, shape, m.wall, 9)
    for z, x in product(np.linspace(-d + 0.08, d - 0.4, 3), (-w + 0.08, w - 0.08)):
        yield turning(x, z, shape, m.wall, 9)
    yield box((-w, high, -d), (w, high + 0.12, d), m.wall)
    if m.flanks:
        yield gable(w + 0.04, high + 0.12, d + 0.04, 0.36, m)
    else:
        yield from crown(m, 0, high + 0.12, 0, 0.36)


def _castle(m: Landmark) -> Solids:
    w, d, r, high = 0.75 * m.wide, 0.5, 0.2, 0.7 * m.tall
    keep = storey(m, (-w, 0, -d), (w, high, d), 1, 3)
    gate = np.concatenate([arc(0.5, 0.6, 0.09, 0.2, 180, 360, 9), [(0.59, 1.0), (0.41, 1.0)]])
    keep.faces[0].decal(gate, (70, 50, 44))
    yield keep
    corners = list(product((d - 0.1, -d + 0.1), (-w - r, w + r)))[: 2 * m.steeples]
    for i, (z, x) in enumerate(corners):
        top = high * (1.35 + 0.2 * (i % 2) * (m.storeys % 2))
        tower = turning(x, z, [(r, 0), (r, top)], m.wall, 12)
        for face in tower.faces[:12:2]:
            face.decal(rect(0.35, 0.18, 0.65, 0.3), NIGHT)
        yield tower
        yield from crown(m, x, top, z, r)
    for x in np.arange(-w, w - 0.05, 0.18):
        yield box((x, high, d - 0.08), (x + 0.1, high + 0.1, d), m.wall)
    inner = box((-0.3, high, -0.35), (0.3, high * 1.4, 0.25), lit(m.wall, 0.95))
    openings(m, inner.faces[0], 1, 3)
    yield inner
    if m.clock:
        yield from crown(m, 0, high * 1.4, -0.05, 0.3)


def _church(m: Landmark) -> Solids:
    w, d, high = 0.42 * m.wide, 0.85, 0.7 * m.tall
    nave = storey(m, (-w, 0, -d), (w, high, d), 1, m.columns)
    nave.faces[0].decals.clear()
    yield nave
    yield gable(w + 0.03, high, d, 0.5, m)
    wide, top = 0.24, high + 0.75
    for x in (0.0,) if m.steeples == 1 else (-w + 0.1, w - 0.1):
        low, up = (x - wide, 0, d + 0.01), (x + wide, top, d + 0.01 + 2 * wide)
        tower = storey(m, low, up, m.storeys, 1)
        tower.faces[0].decal(rect(0.3, 0.84, 0.7, 1.0), (84, 58, 46))
        clock(m, tower.faces[0], 0.2, 0.11, top / (2 * wide))
        yield tower
        yield from crown(m, x, top, d + 0.01 + wide, wide)


def _lighthouse(m: Landmark) -> Solids:
    radius, top, n, shrink = 0.34 * m.wide, 1.7 * m.tall, 2 * m.storeys + 1, 0.5
    yield turning(0, 0, [(0.75, 0.0), (0.5, 0.16)], (120, 116, 112), 9)  # rocks
    for i in range(n):
        y0, y1 = 0.16 + top * i / n, 0.16 + top * (i + 1) / n
        r0, r1 = (radius * (1 - shrink * t / n) for t in (i, i + 1))
        ring = turning(0, 0, [(r0, y0), (r1, y1)], m.cover if i % 2 else m.wall, 14)
        if i % 2 == 0 and i:
            ring.faces[0].decal(rect(0.2, 0.2, 0.8, 0.8), NIGHT)
        yield ring
    y, r = 0.16 + top, radius * (1 - shrink)
    yield turning(0, 0, [(r + 0.1, y), (r + 0.1, y + 0.05)], (70, 72, 84), 14)
    yield turning(0, 0, [(0.8 * r, y + 0.05), (0.8 * r, y + 0.27)], (255, 238, 176), 8)
    cap = [(1.1 * r, y + 0.27), (0.01, y + 0.55)]
    if m.top in ("domed", "onion"):
        cap = [(r, y + 0.27), (0.7 * r, y + 0.37), (0.01, y + 0.48)]
    yield turning(0, 0, cap, m.cover, 14)
    if m.flanks:
        yield storey(m, (0.42, 0, -0.25), (0.42 + 0.5 * m.wide, 0.36, 0.25), 1, 2)


def _pagoda(m: Landmark) -> Solids:
    w, y, high = 0.5 * m.wide, 0.1, 0.24 * m.tall
    yield from plinth(m, 0.52, 0.52)
    for _ in range(m.storeys):
        yield storey(m, (-w, y, -w), (w, y + high, w), 1, m.columns // 2 + 1)
        eaves = [(w + 0.24, y + high), (w + 0.2, y + high + 0.04), (w * 0.86, y + high + 0.17)]
        yield turning(0, 0, eaves, m.cover, 4)
        y, w = y + high + 0.17, w * 0.83
    yield turning(0, 0, [(0.03, y), (0.03, y + 0.3), (0.005, y + 0.45)], lit(m.cover, 0.8), 8)


def _arch(m: Landmark) -> Solids:
    gates, high, d, pier = 1 + m.flanks, 0.9 * m.tall, 0.26, 0.26
    gap = (0.8 if gates == 1 else 0.52) * m.wide
    total = gates * gap + (gates + 1) * pier
    x = -total / 2
    for _ in range(gates + 1):
        post = box((x, 0, -d), (x + pier, high, d), m.wall)
        post.faces[0].decal(rect(0.2, 0.1, 0.8, 0.9), lit(m.wall, 0.88))
        if m.banded:
            post.faces[0].decal(ellipse(0.5, 0.28, 0.24, 0.08), lit(m.wall, 0.66))
        yield post
        x += pier + gap
    top = box((-total / 2, high, -d), (total / 2, high + 0.5, d), m.wall)
    for i in range(gates):
        u = (pier + gap / 2 + i * (pier + gap)) / total
        top.faces[0].decal(arc(u, 1.0, gap / 2 / total, 0.55, 180, 360, 14), (92, 110, 132))
    top.faces[0].decal(rect(0.0, 0.0, 1.0, 0.14), lit(m.wall, 1.2))
    yield top
    half = total / 2 + 0.06
    yield box((-half, high + 0.5, -d - 0.06), (half, high + 0.58, d + 0.06), m.cover)
    yield box((-total / 3, high + 0.58, -d), (total / 3, high + 0.78, d), m.wall)
    if m.clock:
        yield from crown(m, 0, high + 0.78, 0, 0.2)


def _palace(m: Landmark) -> Solids:
    w, d, high = 1.05 * m.wide, 0.38, 0.62 * m.tall
    yield storey(m, (-w, 0, -d), (w, high, d), 2, 2 * m.columns)
    low, up = (-w - 0.04, high, -d - 0.04), (w + 0.04, high + 0.06, d + 0.04)
    yield box(low, up, lit(m.wall, 1.15))
    yield storey(m, (-0.3, 0, d), (0.3, high + 0.3, d + 0.16), 2, 3)
    yield box((-0.28, high + 0.06, -0.24), (0.28, high + 0.36, 0.32), m.wall)
    yield from crown(m, 0, high + 0.36, 0.04, 0.28)
    for x in (-w + 0.2, w - 0.2) if m.flanks else ():
        yield box((x - 0.16, high + 0.06, -0.2), (x + 0.16, high + 0.24, 0.2), m.wall)
        if m.flanks == 2:
            yield from crown(m, x, high + 0.24, 0, 0.16)


def _pyramid(m: Landmark) -> Solids:
    n, w, high = m.storeys + 1, 0.95 * m.wide, 1.05 * m.tall
    for i in range(n):
        r, y0, y1 = w * (1 - i / (n + 0.6)), high * i / n, high * (i + 1) / n
        slope = 0.04 if m.top in ("flat", "stepped") else 0.5 * w / n
        block = turning(0, 0, [(r, y0), (r - slope, y1)], m.wall, 4)
        # The ring starts half a step off, so face 3 of a square faces the front.
        stairs = rect(0.5 - 0.16 * w / r, 0, 0.5 + 0.16 * w / r, 1)
        block.faces[3].decal(stairs, lit(m.wall, 0.82))
        yield block
    if m.flanks:
        r = 0.22 * w
        shrine = box((-r, high, -r), (r, high + 0.24, r), m.wall)
        openings(m, shrine.faces[0], 1, 1 + m.flanks)
        yield shrine
        yield from crown(m, 0, high + 0.24, 0, r)


def _windmill(m: Landmark) -> Solids:
    r, top = 0.42 * m.wide, 1.15 * m.tall
    body = turning(0, 0, [(r, 0), (0.66 * r, top)], m.wall, 8)
    for face in body.faces[:8]:
        openings(m, face, min(m.storeys, 3), 1)
    yield body
    cap = [(0.74 * r, top), (0.6 * r, top + 0.16), (0.05, top + 0.32)]
    yield turning(0, 0, cap, m.cover, 8)
    z = r + 0.06
    yield box((-0.03, top - 0.02, 0.75 * r), (0.03, top + 0.04, z), (90, 70, 58))  # the axle
    sails, vane = [], rect(0.0, 0.12, 0.16 if m.banded else 0.22, 0.8 * m.tall)
    for i in range(4):
        blade = turned(vane, 90 * i + 20 + 10 * m.storeys, (0, 0)) + (0.0, top + 0.02)
        sail = Face(np.column_stack([blade, np.full(4, z)]), (244, 236, 220))
        for v in np.linspace(0.05, 0.9, 4 + m.columns):
            sail.decal(rect(0.0, v, 1.0, v + 0.03), (140, 108, 84))
        sail.decal(rect(0.0, 0, 0.14, 1.0), (120, 88, 66))
        sails.append(sail)
    yield Solid(sails)


BUILDINGS = {
    "tower": _tower, "temple": _temple, "castle": _castle, "church": _church,
    "lighthouse": _lighthouse, "pagoda": _pagoda, "arch": _arch, "palace": _palace,
    "pyramid": _pyramid, "windmill": _windmill,
}  # fmt: skip


@dataclass(frozen=True)
class Landmark(Subject):
    """A building; the numbers of its parts and its proportions."""

    kin = ("kind", "stone", "roof")
    title = "{0.stone}-{0.kind}"

    kind: str = one_of(tuple(BUILDINGS))
    stone: str = one_of(tuple(STONES))
    roof: str = one_of(tuple(ROOFS))
    top: str = one_of(TOPS)
    windows: str = one_of(WINDOWS)
    storeys: int = one_of(range(2, 6))
    columns: int = one_of(range(3, 8))
    flanks: int = one_of(range(3))
    clock: bool = chance(0.35)
    banded: bool = chance(0.4)
    wide: float = real(0.85, 1.2)
    tall: float = real(0.85, 1.2)

    @property
    def phrase(self) -> str:
        top, cover = a(f"{self.top} {self.roof} roof"), a(self.roof)
        levels, windows = count(self.storeys, "storey"), f"{self.windows} windows"
        clock, piers = "a clock" if self.clock else "", "carved" if self.banded else "plain"
        sails = "four narrow sails" if self.banded else "four broad sails"
        hut, shrine = ("a hut", f"a shrine with {top}") if self.flanks else ("", "")
        details = {  # the visible parts; empty where there is none
            "tower": (top, levels, windows, clock),
            "temple": (count(self.columns, "column"), f"{cover} roof" if self.flanks else top),
            "castle": (count(2 * self.steeples, "tower"), windows, top),
            "church": (count(self.steeples, "tower"), top, windows, clock),
            "lighthouse": (f"{cover} cap", count(self.storeys, "stripe"), hut),
            "pagoda": (levels, windows, f"{cover} roof"),
            "arch": (
                count(1 + self.flanks, "opening"),
                f"{piers} piers",
                top if self.clock else f"{cover} cornice",
            ),
            "palace": (top, count(self.columns, "bay"), windows),
            "pyramid": (count(self.storeys + 1, "step"), shrine),
            "windmill": (f"{cover} cap", windows, sails),
        }[self.kind]
        return f"{a(self.stone)} {self.kind} with {listed(*details)}"

    @property
    def steeples(self) -> int:
        """The number of steeples of a church; a castle has twice as many turrets."""
        return 2 if self.flanks == 1 else 1

    @property
    def wall(self) -> RGB:
        """The colour of the stone."""
        return STONES[self.stone]

    @property
    def cover(self) -> RGB:
        """The colour of the roof."""
        return ROOFS[self.roof]

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng, (1.0, 0.75, 0.8, 0.67, 1.25, 1.33))
        scene = outdoors(rng, size)
        camera = Camera(rng.uniform(-34, 34), rng.uniform(2, 16), 6.5)
        pose = Pose(scale=(0.76, 1.0), turn_deg=4, tilt=0.05, shift=0.08, ground=(0.8, 0.95))
        return portrait(rng, scene, BUILDINGS[self.kind](self), camera, pose, lean=0.3)
