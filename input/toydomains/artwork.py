"""Artwork: framed paintings on a wall. A class is one painting; only the photograph changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.colour import RGB, jitter, lit, mix
from toydomains.kit.outline import arc, ellipse, mirrored, rect, smooth, turned
from toydomains.kit.pen import Pen, pick
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import room
from toydomains.kit.subject import Subject, a, chance, count, one_of

# Five colours: the ground, two masses, an accent, a dark.
SCHEMES = (
    ("cream", "teal", "rust", "mustard", "navy"),
    ("light blue", "olive", "tan", "orange", "charcoal"),
    ("pink", "rose", "lavender", "yellow", "purple"),
    ("mustard", "dark green", "rust", "cream", "black"),
    ("navy", "blue", "light blue", "yellow", "black"),
    ("white", "red", "blue", "yellow", "black"),
    ("tan", "brown", "olive", "cream", "charcoal"),
    ("mint", "dark green", "pink", "orange", "navy"),
)
FRAMES: dict[str, tuple[RGB, float]] = {
    "golden": ((206, 164, 84), 0.09), "black": ((44, 42, 46), 0.05), "white": ((242, 240, 234), 0.06),
    "oak": ((190, 142, 92), 0.06), "red": ((160, 58, 50), 0.05), "wide golden": ((190, 146, 70), 0.14),
}  # fmt: skip


def blocks(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    """Draw a recursively split rectangle, with dark bars between the cells."""
    cells = [(0.0, 0.0, p.shape, 1.0)]
    for _ in range(p.elements + 2):
        i = int(np.argmax([(c[2] - c[0]) * (c[3] - c[1]) * rng.uniform(0.4, 1) for c in cells]))
        x0, y0, x1, y1 = cells.pop(i)
        t = rng.uniform(0.25, 0.75)
        if x1 - x0 > y1 - y0:
            cells += [(x0, y0, x0 + t * (x1 - x0), y1), (x0 + t * (x1 - x0), y0, x1, y1)]
        else:
            cells += [(x0, y0, x1, y0 + t * (y1 - y0)), (x0, y0 + t * (y1 - y0), x1, y1)]
    for x0, y0, x1, y1 in cells:
        colour = p.scheme[int(rng.choice(5, p=(0.4, 0.2, 0.17, 0.18, 0.05)))]
        pen.fill(rect(x0, y0, x1, y1), jitter(rng, colour, 0.05))
    for x0, y0, x1, y1 in cells:
        pen.line(rect(x0, y0, x1, y1), p.scheme[4], 0.022, closed=True)


def circles(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    """Draw targets of several rings, and thin straight lines."""
    ground(pen, rng, p, p.scheme[0], 12)
    for _ in range(p.elements + 2):
        x, y, r = rng.uniform(0, p.shape), rng.uniform(0, 1), rng.uniform(0.08, 0.26)
        for share in (1.0, 0.75, 0.5, 0.25)[: int(rng.integers(1, 5))]:
            pen.fill(ellipse(x, y, r * share), pick(rng, p.scheme[1:]))
    for _ in range(p.elements):
        x, y = rng.uniform(0, p.shape), rng.uniform(0, 1)
        angle = rng.uniform(0, np.pi)
        pen.line([(x, y), (x + 0.6 * np.cos(angle), y + 0.6 * np.sin(angle))], p.scheme[4], 0.014)


def cutouts(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    """Draw lobed paper leaves on coloured fields."""
    columns = 2 + p.elements % 3
    for i in range(columns):
        for j in range(2):
            x0, x1 = p.shape * i / columns, p.shape * (i + 1) / columns
            pen.fill(rect(x0, j / 2, x1, (j + 1) / 2), p.scheme[int(rng.integers(0, 5))])
    for _ in range(p.elements):
        x, y = rng.uniform(0.12, p.shape - 0.12), rng.uniform(0.15, 0.85)
        lobes, turn = int(rng.integers(4, 8)), rng.uniform(0, 360)
        angle = np.linspace(0, 2 * np.pi, 4 * lobes, endpoint=False)
        r = 0.16 * (0.62 + 0.38 * np.cos(lobes * angle)) * rng.uniform(0.7, 1.3)
        frond = np.stack([x + r * np.cos(angle), y + 1.35 * r * np.sin(angle)], axis=1)
        pen.fill(turned(smooth(frond, 3), turn, (x, y)), p.scheme[int(rng.integers(0, 5))])


def ground(
    pen: Pen, rng: np.random.Generator, p: Painting, colour: str | RGB, strokes: int = 26
) -> None:
    """Paint the ground with broad strokes of nearly one colour."""
    pen.fill(rect(0, 0, p.shape, 1), colour)
    for _ in range(strokes):
        x, y = rng.uniform(-0.1, p.shape), rng.uniform(0, 1)
        dab = rect(x, y, x + rng.uniform(0.15, 0.4), y + 0.045, 0.02)
        pen.fill(turned(dab, rng.normal(0, 8), (x, y)), jitter(rng, colour, 0.1))


def _hills(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    sky, mass, second, accent, dark = p.scheme
    ground(pen, rng, p, sky)
    pen.fill(ellipse(rng.uniform(0.2, 0.8) * p.shape, rng.uniform(0.12, 0.3), 0.09), accent)
    n = p.elements
    for i in range(n):
        y = 0.35 + 0.6 * i / n
        xs = np.linspace(-0.1, p.shape + 0.1, 6)
        ridge = np.stack([xs, y + rng.uniform(-0.09, 0.09, 6)], axis=1)
        colour = mix((mass, second)[i % 2], sky if i < n / 2 else dark, 0.3 * abs(1 - 2 * i / n))
        outline = np.concatenate([smooth(ridge, closed=False), [(p.shape + 0.1, 1.1), (-0.1, 1.1)]])
        pen.fill(outline, colour)
        for _ in range(7):
            x, v = rng.uniform(0, p.shape), y + rng.uniform(0.06, 0.2)
            furrow = [(x, v), (x + 0.1, v + rng.uniform(-0.03, 0.03))]
            pen.line(furrow, jitter(rng, colour, 0.22), 0.014)
    for _ in range(p.elements):
        x, y = rng.uniform(0.05, p.shape - 0.05), rng.uniform(0.62, 0.9)
        pen.fill(rect(x - 0.008, y, x + 0.008, y + 0.07), dark)
        pen.fill(ellipse(x, y - 0.03, 0.035, 0.06), jitter(rng, dark, 0.25))


def _sea(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    sky, mass, second, accent, dark = p.scheme
    ground(pen, rng, p, sky)
    line = rng.uniform(0.35, 0.55)
    pen.fill(rect(0, line, p.shape, 1), mass, mix(mass, dark, 0.5))
    for _ in range(40):
        x, y = rng.uniform(0, p.shape), rng.uniform(line + 0.02, 1)
        glint = jitter(rng, pick(rng, (mass, sky, second)), 0.2)
        pen.line([(x, y), (x + 0.06 + 0.12 * (y - line), y)], glint, 0.012)
    for i in range(p.elements):
        x, y, s = rng.uniform(0.1, p.shape - 0.1), line + 0.03 + 0.08 * i, 0.1 + 0.035 * i
        hull = np.array([(-1, 0), (1, 0), (0.7, 0.3), (-0.7, 0.3)])
        pen.fill(hull * s + (x, y), dark)
        sail = np.array([(0, -1.7), (0, -0.08), (pick(rng, (-1, 1)), -0.08)])
        pen.fill(sail * s + (x, y), pick(rng, (accent, second, "white")))
    pen.fill(ellipse(rng.uniform(0.15, 0.85) * p.shape, line - 0.18, 0.07), accent)


def _still_life(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    wall, mass, second, accent, dark = p.scheme
    ground(pen, rng, p, wall)
    pen.fill(rect(0, 0.62, p.shape, 1), mass, mix(mass, dark, 0.3))
    x = rng.uniform(0.2, 0.4) * p.shape
    jug = [(0.05, 0.18), (0.05, 0.3), (0.13, 0.5), (0.12, 0.72), (0.0, 0.75)]
    pen.fill(smooth(mirrored(jug, axis=0), 4) + (x, 0), second, mix(second, dark, 0.4))
    pen.line(arc(x + 0.12, 0.42, 0.08, 0.1, -90, 120), mix(second, dark, 0.3), 0.025)
    for i in range(p.elements):
        fx = (0.45 + 0.5 * rng.random()) * p.shape
        r = rng.uniform(0.06, 0.1)
        fy = 0.72 + 0.04 * (i % 4)
        colour = pick(rng, (accent, "red", "orange", "olive", "yellow"))
        pen.fill(ellipse(fx + 0.03, fy + r * 0.8, r * 1.2, r * 0.35), mix(mass, dark, 0.5))
        pen.fill(ellipse(fx, fy, r), lit(colour, 1.1), lit(colour, 0.75))
        pen.line([(fx, fy - r * 0.8), (fx + 0.015, fy - r * 1.25)], dark, 0.012)


def _portrait(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    wall, coat, hair, accent, dark = p.scheme
    ground(pen, rng, p, wall)
    x = p.shape / 2 + rng.uniform(-0.06, 0.06)
    skin = pick(rng, ((240, 200, 168), (198, 146, 108), (136, 92, 68)))
    if p.elements % 2:  # long hair
        mane = [(0.0, 0.14), (0.2, 0.24), (0.24, 0.5), (0.2, 0.78), (0.0, 0.8)]
        pen.fill(smooth(mirrored(mane, axis=0)) + (x, 0), hair)
    shoulders = [(0.0, 0.66), (0.16, 0.7), (0.36, 0.84), (0.4, 1.1), (0.0, 1.1)]
    pen.fill(smooth(mirrored(shoulders, axis=0)) + (x, 0), coat)
    pen.fill(rect(x - 0.06, 0.52, x + 0.06, 0.72, 0.03), lit(skin, 0.85))
    pen.fill(ellipse(x, 0.42, 0.15, 0.2), lit(skin, 1.06), lit(skin, 0.9))
    fringe = arc(x, 0.38, 0.17, 0.2 + 0.02 * (p.elements % 3), 180, 360)
    pen.fill(np.concatenate([fringe, [(x + 0.1, 0.3), (x - 0.06, 0.27)]]), hair)
    for s in (-1, 1):
        pen.fill(ellipse(x + s * 0.06, 0.42, 0.026, 0.016, 12), "white")
        pen.fill(ellipse(x + s * 0.06, 0.42, 0.013, steps=10), dark)
        pen.line(arc(x + s * 0.06, 0.39, 0.035, 0.02, 200, 340, 6), hair, 0.012)
    pen.line([(x, 0.43), (x + 0.02, 0.49), (x - 0.005, 0.5)], lit(skin, 0.7), 0.01)
    pen.line(arc(x, 0.53, 0.045, 0.025, 20, 160, 8), (176, 72, 70), 0.016)
    if p.elements > 4:
        pen.fill(ellipse(x, 0.245, 0.25, 0.05), accent)
        pen.fill(ellipse(x, 0.2, 0.15, 0.09), accent)
    pen.fill([(x, 0.7), (x + 0.09, 0.76), (x, 0.84), (x - 0.09, 0.76)], accent)


def _night(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    sky = mix(p.scheme[4], "navy", 0.6)
    ground(pen, rng, p, sky)
    for _ in range(p.elements):
        x, y = rng.uniform(0, p.shape), rng.uniform(0.05, 0.6)
        for r in np.arange(0.03, 0.18, 0.022):
            start = rng.uniform(0, 360)
            glow = jitter(rng, mix(sky, p.scheme[1], 0.55), 0.2)
            pen.line(arc(x, y, r, r, start, start + 230, 14), glow, 0.012)
        pen.fill(ellipse(x, y, 0.032), p.scheme[3])
    for i in range(9):
        x = p.shape * i / 8
        roof = 0.85 - rng.uniform(0, 0.14)
        pen.fill(rect(x - 0.08, roof, x + 0.07, 1.0), mix(p.scheme[2], sky, 0.6))
        pen.fill(rect(x - 0.02, 0.88, x + 0.01, 0.92), p.scheme[3])
    x = rng.uniform(0.1, 0.9) * p.shape
    cypress = [(0.0, 0.3), (0.05, 0.6), (0.09, 1.0), (-0.09, 1.0), (-0.05, 0.6)]
    pen.fill(smooth(cypress) + (x, 0), "black")


def _town(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    ground(pen, rng, p, p.scheme[0])
    for row in range(3):
        x = -0.1
        while x < p.shape:
            w, top = rng.uniform(0.12, 0.24), 0.25 + 0.2 * row + rng.uniform(0, 0.14)
            colour = jitter(rng, p.scheme[1 + int(rng.integers(0, 3))], 0.15)
            pen.fill(rect(x, top, x + w, 1.0), colour)
            if rng.random() < 0.6:
                gable = [(x - 0.01, top), (x + w / 2, top - 0.11), (x + w + 0.01, top)]
                pen.fill(gable, p.scheme[4])
            for y in np.arange(top + 0.04, 0.95, 0.1):
                for u in (0.25, 0.65):
                    pen.fill(rect(x + u * w, y, x + (u + 0.2) * w, y + 0.05), lit(colour, 0.55))
            x += w
    pen.fill(ellipse(rng.uniform(0.1, 0.9) * p.shape, 0.14, 0.07), p.scheme[3])
    for i in range(p.elements):
        x, y = (i + rng.uniform(0.3, 0.7)) / p.elements * p.shape, rng.uniform(0.05, 0.2)
        pen.fill(ellipse(x, y, 0.3 / p.elements, 0.03), "white")


def _bouquet(pen: Pen, rng: np.random.Generator, p: Painting) -> None:
    wall, mass, second, accent, dark = p.scheme
    ground(pen, rng, p, wall)
    x = p.shape / 2
    pen.fill(rect(0, 0.8, p.shape, 1), second)
    for _ in range(p.elements + 3):
        fx, fy = x + rng.normal(0, 0.17), rng.uniform(0.14, 0.5)
        stem = smooth([(x, 0.7), ((x + fx) / 2, 0.6), (fx, fy)], closed=False)
        pen.line(stem, "dark green", 0.014)
        colour, r = pick(rng, (mass, accent, "rose", "white")), rng.uniform(0.05, 0.09)
        petal = ellipse(fx, fy - 0.62 * r, 0.36 * r, 0.6 * r, 12)
        for angle in np.linspace(0, 360, int(rng.integers(5, 9)), endpoint=False):
            pen.fill(turned(petal, angle, (fx, fy)), jitter(rng, colour, 0.12))
        pen.fill(ellipse(fx, fy, 0.3 * r, steps=12), dark)
    wide = 0.1 + 0.012 * p.elements
    vase = [(0.07, 0.58), (0.05, 0.64), (wide, 0.76), (0.07, 0.92), (0.0, 0.93)]
    pen.fill(smooth(mirrored(vase, axis=0), 4) + (x, 0), lit(mass, 1.05), mix(mass, dark, 0.5))
    for y in np.linspace(0.7, 0.84, 1 + p.elements % 3):
        pen.line([(x - 0.9 * wide, y), (x + 0.9 * wide, y)], accent, 0.014)


PAINTERS = {
    "hills": _hills, "sea": _sea, "still life": _still_life, "blocks": blocks,
    "circles": circles, "portrait": _portrait, "night sky": _night, "cut-outs": cutouts,
    "town": _town, "bouquet": _bouquet,
}  # fmt: skip


@dataclass(frozen=True)
class Painting(Subject):
    """A painting; `seed` fixes every stroke of it."""

    media = ("a photo of", "a visitor's photo of", "a snapshot of")
    kin = ("genre", "scheme", "frame", "shape")
    title = "{0.scheme[1]}-{0.genre}"

    genre: str = one_of(tuple(PAINTERS))
    scheme: tuple[str, str, str, str, str] = one_of(SCHEMES)
    frame: str = one_of(tuple(FRAMES))
    mat: bool = chance(0.4)
    shape: float = one_of((0.75, 0.8, 1.0, 1.3, 1.5))
    elements: int = one_of(range(3, 8))
    seed: int = one_of(range(2**31))

    @property
    def phrase(self) -> str:
        ground, mass, second, accent, _ = self.scheme
        hair = "long" if self.elements % 2 else "short"
        subject = {
            "hills": f"a painting of {count(self.elements, 'hill')}",
            "sea": f"a painting of {count(self.elements, 'boat')} on the sea",
            "still life": f"a still life with {count(self.elements, 'fruit')}",
            "blocks": f"an abstract painting of {count(self.elements + 3, 'block')}",
            "circles": f"an abstract painting of circles and {count(self.elements, 'line')}",
            "portrait": f"a painted portrait with {hair} hair" + " and a hat" * (self.elements > 4),
            "night sky": f"a painting of {count(self.elements, 'swirl')} in a night sky",
            "cut-outs": f"a picture of {count(self.elements, 'paper leaf')}",
            "town": f"a painting of a town under {count(self.elements, 'cloud')}",
            "bouquet": f"a painting of {count(self.elements + 3, 'flower')} in a vase",
        }[self.genre]
        mat = " and a white mat" * self.mat
        colours = f"{ground}, {mass}, {second} and {accent}"
        return f"{subject} in {colours} with {a(self.frame)} frame{mat}"

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng)
        scene = room(rng, size, (0.86, 1.15))
        pose = Pose(scale=(0.74, 1.1), turn_deg=6, tilt=0.14, shift=0.08)
        colour, thick = FRAMES[self.frame]
        edge = thick + (0.1 if self.mat else 0.0)
        extent = x0, y0, x1, y1 = (-edge, -edge, self.shape + edge, 1 + edge)
        pen = blank(size, placed(rng, extent, size, pose))
        pen.fill(rect(*extent), lit(colour, 1.12), lit(colour, 0.85))
        for inset, gain in ((0.25, 0.8), (0.4, 1.2), (0.8, 0.75)):
            t = thick * inset
            pen.fill(rect(x0 + t, y0 + t, x1 - t, y1 - t), lit(colour, gain))
        if self.mat:
            pen.fill(rect(x0 + thick, y0 + thick, x1 - thick, y1 - thick), "white")
        with pen.inside(rect(0, 0, self.shape, 1)) as canvas:
            PAINTERS[self.genre](canvas, np.random.default_rng(self.seed), self)
        if rng.random() < 0.35:
            x = rng.uniform(0, 0.6) * self.shape
            glare = np.array([(x, 0), (x + 0.25, 0), (x + 0.05, 1), (x - 0.2, 1)])
            with pen.inside(rect(0, 0, self.shape, 1)) as glass:
                glass.fill(glare, "white", alpha=0.16)
        return develop(rng, scene, pen.image, lift_px=6, obstacles=0.3)
