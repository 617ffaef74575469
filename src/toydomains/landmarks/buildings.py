"""The buildings themselves, each a list of solids."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from toydomains.kit.colour import lit
from toydomains.kit.outline import arc, ellipse, rect, turned
from toydomains.kit.solid import Face, Solid, box, turning
from toydomains.landmarks.masonry import clock, crown, gable, openings, plinth, storey
from toydomains.landmarks.spec import Landmark


def _tower(m: Landmark) -> list[Solid]:
    w, step, y, solids = 0.3 * m.wide, 0.46 * m.tall, 0.1, plinth(m, 0.34, 0.34)
    for i in range(m.storeys):
        block = storey(m, (-w, y, -w), (w, y + step, w), 1, 1 + m.columns % 3)
        low, high = (-w - 0.03, y + step, -w - 0.03), (w + 0.03, y + step + 0.04, w + 0.03)
        solids += [block, box(low, high, lit(m.wall, 1.12))]
        y += step + 0.04
        if i == m.storeys - 1:
            for face in block.faces[:2]:
                clock(m, face, 0.5, 0.5, 0.36, step / (2 * w))
        w *= 0.9
    return solids + crown(m, 0, y, 0, w)


def _temple(m: Landmark) -> list[Solid]:
    w, d, high = 0.95 * m.wide, 0.6, 0.85 * m.tall
    solids = plinth(m, w, d, 3)
    inner = box((-w + 0.18, 0.15, -d + 0.14), (w - 0.18, high, d - 0.2), lit(m.wall, 0.72))
    solids.append(inner)
    r = 0.05 if m.columns > 5 else 0.065
    shape = [(1.15 * r, 0.15), (r, 0.2), (0.85 * r, high - 0.04), (1.2 * r, high)]
    for x in np.linspace(-w + 0.08, w - 0.08, m.columns):
        solids.append(turning(x, d - 0.08, shape, m.wall, 9))
    for z in np.linspace(-d + 0.08, d - 0.4, 3):
        solids += [turning(x, z, shape, m.wall, 9) for x in (-w + 0.08, w - 0.08)]
    solids.append(box((-w, high, -d), (w, high + 0.12, d), m.wall))
    if m.flanks == 0:
        return solids + crown(m, 0, high + 0.12, 0, 0.36)
    return [*solids, gable(w + 0.04, high + 0.12, d + 0.04, 0.36, m)]


def _castle(m: Landmark) -> list[Solid]:
    w, d, high = 0.75 * m.wide, 0.5, 0.7 * m.tall
    keep = storey(m, (-w, 0, -d), (w, high, d), 1, 3)
    gate = np.concatenate([arc(0.5, 0.6, 0.09, 0.2, 180, 360, 9), [(0.59, 1.0), (0.41, 1.0)]])
    keep.faces[0].decal(gate, (70, 50, 44))
    solids, r = [keep], 0.2
    corners = [(-w - r, d - 0.1), (w + r, d - 0.1)]
    corners += [(-w - r, -d + 0.1), (w + r, -d + 0.1)] if m.towers == 4 else []
    for i, (x, z) in enumerate(corners):
        top = high * (1.35 + 0.2 * (i % 2) * (m.storeys % 2))
        tower = turning(x, z, [(r, 0), (r, top)], m.wall, 12)
        for face in tower.faces[:12:2]:
            face.decal(rect(0.35, 0.18, 0.65, 0.3), (64, 66, 88))
        solids += [tower, *crown(m, x, top, z, r)]
    for x in np.arange(-w, w - 0.05, 0.18):
        solids.append(box((x, high, d - 0.08), (x + 0.1, high + 0.1, d), m.wall))
    inner = box((-0.3, high, -0.35), (0.3, high * 1.4, 0.25), lit(m.wall, 0.95))
    openings(m, inner.faces[0], 1, 3)
    return [*solids, inner, *(crown(m, 0, high * 1.4, -0.05, 0.3) if m.clock else [])]


def _church(m: Landmark) -> list[Solid]:
    w, d, high = 0.42 * m.wide, 0.85, 0.7 * m.tall
    nave = storey(m, (-w, 0, -d), (w, high, d), 1, m.columns)
    nave.faces[0].decals.clear()
    wide, top = 0.24, high + 0.75
    solids = [nave, gable(w + 0.03, high, d, 0.5, m)]
    for x in (0.0,) if m.steeples == 1 else (-w + 0.1, w - 0.1):
        low, high_ = (x - wide, 0, d + 0.01), (x + wide, top, d + 0.01 + 2 * wide)
        tower = storey(m, low, high_, m.storeys, 1)
        tower.faces[0].decal(rect(0.3, 0.84, 0.7, 1.0), (84, 58, 46))
        clock(m, tower.faces[0], 0.5, 0.2, 0.11, top / (2 * wide))
        solids += [tower, *crown(m, x, top, d + 0.01 + wide, wide)]
    return solids


def _lighthouse(m: Landmark) -> list[Solid]:
    radius, top, n = 0.34 * m.wide, 1.7 * m.tall, 2 * m.storeys + 1
    rocks = turning(0, 0, [(0.75, 0.0), (0.5, 0.16)], (120, 116, 112), 9)
    solids, shrink = [rocks], 0.5
    for i in range(n):
        y0, y1 = 0.16 + top * i / n, 0.16 + top * (i + 1) / n
        r0, r1 = (radius * (1 - shrink * t / n) for t in (i, i + 1))
        ring = turning(0, 0, [(r0, y0), (r1, y1)], m.cover if i % 2 else m.wall, 14)
        if i % 2 == 0 and i:
            ring.faces[0].decal(rect(0.2, 0.2, 0.8, 0.8), (64, 66, 88))
        solids.append(ring)
    y, r = 0.16 + top, radius * (1 - shrink)
    solids.append(turning(0, 0, [(r + 0.1, y), (r + 0.1, y + 0.05)], (70, 72, 84), 14))
    solids.append(turning(0, 0, [(0.8 * r, y + 0.05), (0.8 * r, y + 0.27)], (255, 238, 176), 8))
    cap = [(1.1 * r, y + 0.27), (0.01, y + 0.55)]
    if m.top in ("domed", "onion"):
        cap = [(r, y + 0.27), (0.7 * r, y + 0.37), (0.01, y + 0.48)]
    solids.append(turning(0, 0, cap, m.cover, 14))
    if m.flanks:
        solids.append(storey(m, (0.42, 0, -0.25), (0.42 + 0.5 * m.wide, 0.36, 0.25), 1, 2))
    return solids


def _pagoda(m: Landmark) -> list[Solid]:
    w, y, solids = 0.5 * m.wide, 0.1, plinth(m, 0.52, 0.52)
    for _ in range(m.storeys):
        high = 0.24 * m.tall
        solids.append(storey(m, (-w, y, -w), (w, y + high, w), 1, m.columns // 2 + 1))
        eaves = [(w + 0.24, y + high), (w + 0.2, y + high + 0.04), (w * 0.86, y + high + 0.17)]
        solids.append(turning(0, 0, eaves, m.cover, 4))
        y, w = y + high + 0.17, w * 0.83
    spire = [(0.03, y), (0.03, y + 0.3), (0.005, y + 0.45)]
    return [*solids, turning(0, 0, spire, lit(m.cover, 0.8), 8)]


def _arch(m: Landmark) -> list[Solid]:
    gates, high, d, pier = 1 + m.flanks, 0.9 * m.tall, 0.26, 0.26
    gap = (0.8 if gates == 1 else 0.52) * m.wide
    total = gates * gap + (gates + 1) * pier
    solids, x = [], -total / 2
    for _ in range(gates + 1):
        post = box((x, 0, -d), (x + pier, high, d), m.wall)
        post.faces[0].decal(rect(0.2, 0.1, 0.8, 0.9), lit(m.wall, 0.88))
        if m.banded:
            post.faces[0].decal(ellipse(0.5, 0.28, 0.24, 0.08), lit(m.wall, 0.66))
        solids.append(post)
        x += pier + gap
    top = box((-total / 2, high, -d), (total / 2, high + 0.5, d), m.wall)
    for i in range(gates):
        u = (pier + gap / 2 + i * (pier + gap)) / total
        top.faces[0].decal(arc(u, 1.0, gap / 2 / total, 0.55, 180, 360, 14), (92, 110, 132))
    top.faces[0].decal(rect(0.0, 0.0, 1.0, 0.14), lit(m.wall, 1.2))
    half = total / 2 + 0.06
    cornice = box((-half, high + 0.5, -d - 0.06), (half, high + 0.58, d + 0.06), m.cover)
    attic = box((-total / 3, high + 0.58, -d), (total / 3, high + 0.78, d), m.wall)
    solids += [top, cornice, attic]
    return solids + (crown(m, 0, high + 0.78, 0, 0.2) if m.clock else [])


def _palace(m: Landmark) -> list[Solid]:
    w, d, high = 1.05 * m.wide, 0.38, 0.62 * m.tall
    front = storey(m, (-w, 0, -d), (w, high, d), 2, 2 * m.columns)
    ledge = box((-w - 0.04, high, -d - 0.04), (w + 0.04, high + 0.06, d + 0.04), lit(m.wall, 1.15))
    solids = [front, ledge]
    centre = storey(m, (-0.3, 0, d), (0.3, high + 0.3, d + 0.16), 2, 3)
    drum = box((-0.28, high + 0.06, -0.24), (0.28, high + 0.36, 0.32), m.wall)
    solids += [centre, drum, *crown(m, 0, high + 0.36, 0.04, 0.28)]
    if m.flanks:
        for x in (-w + 0.2, w - 0.2):
            solids += [box((x - 0.16, high + 0.06, -0.2), (x + 0.16, high + 0.24, 0.2), m.wall)]
            solids += crown(m, x, high + 0.24, 0, 0.16) if m.flanks == 2 else []
    return solids


def _pyramid(m: Landmark) -> list[Solid]:
    n, w, high = m.storeys + 1, 0.95 * m.wide, 1.05 * m.tall
    solids = []
    for i in range(n):
        r, y0, y1 = w * (1 - i / (n + 0.6)), high * i / n, high * (i + 1) / n
        slope = 0.04 if m.top in ("flat", "stepped") else 0.5 * w / n
        block = turning(0, 0, [(r, y0), (r - slope, y1)], m.wall, 4)
        # The ring starts half a step off, so face 3 of a square faces the front.
        stairs = rect(0.5 - 0.16 * w / r, 0, 0.5 + 0.16 * w / r, 1)
        block.faces[3].decal(stairs, lit(m.wall, 0.82))
        solids.append(block)
    if m.flanks:
        r = 0.22 * w
        shrine = box((-r, high, -r), (r, high + 0.24, r), m.wall)
        openings(m, shrine.faces[0], 1, 1 + m.flanks)
        solids += [shrine, *(crown(m, 0, high + 0.24, 0, r))]
    return solids


def _windmill(m: Landmark) -> list[Solid]:
    r, top = 0.42 * m.wide, 1.15 * m.tall
    body = turning(0, 0, [(r, 0), (0.66 * r, top)], m.wall, 8)
    for face in body.faces[:8]:
        openings(m, face, min(m.storeys, 3), 1)
    cap = turning(0, 0, [(0.74 * r, top), (0.6 * r, top + 0.16), (0.05, top + 0.32)], m.cover, 8)
    hub, z = (0.0, top + 0.02), r + 0.06
    axle = box((-0.03, top - 0.02, 0.75 * r), (0.03, top + 0.04, z), (90, 70, 58))
    sails = Solid(list(_sails(m, hub, z)))
    return [body, cap, axle, sails]


def _sails(m: Landmark, hub: tuple[float, float], z: float) -> Iterator[Face]:
    reach, broad = 0.8 * m.tall, 0.16 if m.banded else 0.22
    for i in range(4):
        blade = turned(rect(0.0, 0.12, broad, reach), 90 * i + 20 + 10 * m.storeys, (0, 0)) + hub
        face = Face(np.column_stack([blade, np.full(4, z)]), (244, 236, 220))
        for v in np.linspace(0.05, 0.9, 4 + m.columns):
            face.decal(rect(0.0, v, 1.0, v + 0.03), (140, 108, 84))
        face.decal(rect(0.0, 0, 0.14, 1.0), (120, 88, 66))
        yield face


BUILDINGS = {
    "tower": _tower, "temple": _temple, "castle": _castle, "church": _church,
    "lighthouse": _lighthouse, "pagoda": _pagoda, "arch": _arch, "palace": _palace,
    "pyramid": _pyramid, "windmill": _windmill,
}  # fmt: skip
