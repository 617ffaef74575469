"""Apparel: garments laid flat. A class is a cut, a pattern, a palette, a neck, pockets, a print."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guie.toy.canvas import Pen, arc, ellipse, mirrored, pick, rect, smooth, turned
from guie.toy.colour import PALETTES, lit
from guie.toy.ornament import EMBLEMS, PATTERNS, emblem, pattern
from guie.toy.photo import Pose, View, blank, develop, frame, placed
from guie.toy.scene import tabletop
from guie.toy.subject import Subject, a, count

TOPS = ("t-shirt", "shirt", "sweater", "hoodie", "tank top", "jacket", "dress")
CUTS = (*TOPS, "dress", "skirt", "trousers", "shorts")


@dataclass(frozen=True)
class Garment(Subject):
    """A garment; lengths are shares of its width."""

    kin = ("cut", "palette", "pattern", "repeats")

    cut: str
    pattern: str
    repeats: int
    palette: tuple[str, str, str]
    neck: str
    pockets: int
    print: str
    length: float
    sleeve: float
    flare: float
    trim: bool

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Garment:
        cut = pick(rng, CUTS)
        plain_front = cut in ("t-shirt", "sweater", "tank top", "hoodie")
        kind = pick(rng, PATTERNS)
        return cls(
            cut=cut,
            pattern=kind,
            repeats=int(rng.integers(4, 11)),
            palette=pick(rng, PALETTES),
            neck=_neck(rng, cut),
            pockets=0 if cut == "tank top" else int(rng.integers(0, 3)),
            print=pick(rng, tuple(EMBLEMS)) if plain_front and rng.random() < 0.6 else "",
            length=float(rng.uniform(0.74, 0.98)),
            sleeve=_sleeve(rng, cut),
            flare=float(rng.uniform(-0.02, 0.06)),
            trim=bool(rng.random() < 0.5),
        )

    @property
    def name(self) -> str:
        return f"{self.pattern}-{self.cut}".replace(" ", "-")

    @property
    def phrase(self) -> str:
        main, second, accent = self.palette
        colour = main if self.pattern == "plain" else f"{main} and {second} {self.pattern}"
        sleeves = {0.0: "sleeveless ", 0.24: "short-sleeved ", 0.6: "long-sleeved "}
        cut = (sleeves.get(self.sleeve, "") if self.cut in ("shirt", "dress") else "") + self.cut
        extras = [f"{accent} trim"] * self.trim + [a(f"{self.print} print")] * bool(self.print)
        extras += [count(self.pockets, "pocket")] * bool(self.pockets)
        extras += [f"a {self.neck}"] if self.cut in TOPS and self.cut != "hoodie" else []
        noun = f"{colour} {cut}"
        head = f"a pair of {noun}" if self.cut in ("trousers", "shorts") else a(noun)
        return head + (" with " + " and ".join(extras[:3]) if extras else "")

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng)
        scene = tabletop(rng, size)
        extent = (-0.1, -0.02, 1.1, 1.12) if self.cut in TOPS else (0.05, 0.0, 0.95, 1.05)
        pose = Pose(scale=(0.86, 1.12), turn_deg=22, tilt=0.08, shift=0.07)
        pen = blank(size, placed(rng, extent, size, pose))
        (self._draw_top if self.cut in TOPS else self._draw_bottom)(pen, rng)
        _folds(pen, rng)
        return develop(rng, scene, pen.image, lift_px=4)

    def _cloth(self, pen: Pen, outline: np.ndarray, box: tuple[float, float, float, float]) -> None:
        """Fill an outline with the garment's colour and its pattern, scaled to `box`."""
        main, second, accent = self.palette
        with pen.inside(outline) as cloth:
            cloth.fill(outline, lit(main, 1.06), lit(main, 0.93))
            x0, y0, x1, y1 = box
            pattern(cloth.on(rect(x0, y0, x1, y1)), self.pattern, self.repeats, second, accent)

    def _draw_top(self, pen: Pen, rng: np.random.Generator) -> None:
        main, _, accent = self.palette
        hem = self.length if self.cut != "dress" else 1.08
        wide = 0.27 + self.flare + (0.16 if self.cut == "dress" else 0.0)
        shoulder = 0.2 if self.cut == "tank top" else 0.27
        half = [(0.6, 0.06), (0.5 + shoulder, 0.11), (0.755, 0.36), (0.74, 0.6), (0.5 + wide, hem)]
        body = mirrored([*half, (0.5, hem + 0.015)])
        if self.sleeve:
            self._sleeves(pen, rng)
        if self.cut == "hoodie":
            pen.fill(
                smooth(mirrored([(0.5, -0.02), (0.62, 0.0), (0.66, 0.12), (0.5, 0.2)])),
                lit(main, 0.82),
            )
        self._cloth(pen, body, (0.08, 0.06, 0.92, 1.1))
        if self.trim or self.cut in ("sweater", "hoodie", "jacket"):
            edge = accent if self.trim else lit(main, 0.8)
            left, right = 0.5 - wide, 0.5 + wide
            pen.fill(rect(left, hem - 0.035, right, hem + 0.012), edge)
        self._front(pen, hem)
        self._collar(pen)

    def _sleeves(self, pen: Pen, rng: np.random.Generator) -> None:
        main, _, accent = self.palette
        for side in (-1, 1):
            angle = float(rng.uniform(16, 40)) if self.sleeve > 0.3 else float(rng.uniform(38, 52))
            long = self.sleeve
            arm = np.array([(-0.1, 0.0), (0.075, 0.0), (0.06, long), (-0.06, long)])
            cuff = np.array(
                [(0.062, long - 0.04), (0.06, long), (-0.06, long), (-0.064, long - 0.04)]
            )
            spot = (0.5 + side * 0.225, 0.17)
            limb, cuff = (turned(p, -side * angle, (0, 0)) + spot for p in (arm, cuff))
            frame_ = turned(rect(-0.12, -0.05, 0.12, 0.75), -side * angle, (0, 0)) + spot
            with pen.inside(limb) as cloth:
                cloth.fill(limb, lit(main, 0.96), lit(main, 0.86))
                pattern(
                    cloth.on(frame_),
                    self.pattern,
                    max(3, self.repeats - 1),
                    self.palette[1],
                    accent,
                )
            if self.trim:
                pen.fill(cuff, accent)

    def _front(self, pen: Pen, hem: float) -> None:
        main, second, accent = self.palette
        if self.cut in ("shirt", "jacket"):
            pen.line([(0.5, 0.14), (0.5, hem)], lit(main, 0.68), 0.012)
            for y in np.linspace(0.24, hem - 0.1, 5):
                pen.fill(
                    ellipse(0.522, y, 0.014, steps=10),
                    accent if self.cut == "shirt" else lit(second, 0.9),
                )
        if self.print:
            ground = lit(main, 1.0)
            pen.fill(ellipse(0.5, 0.42, 0.16), accent)
            emblem(pen.on(rect(0.4, 0.32, 0.6, 0.52)), self.print, ground, accent)
        if self.cut == "hoodie" and self.pockets:
            pouch = mirrored([(0.58, hem - 0.25), (0.66, hem - 0.07), (0.5, hem - 0.07)])
            pen.fill(pouch, lit(main, 0.84))
            return
        for i in range(self.pockets):
            x, y = (0.62, 0.38)[i % 2] - 0.055, 0.3 if self.cut != "dress" else 0.62
            y = hem - 0.28 if self.cut in ("jacket", "sweater", "t-shirt") else y
            pen.fill(rect(x, y, x + 0.11, y + 0.13, 0.02), lit(main, 0.82))
            pen.fill(rect(x, y, x + 0.11, y + 0.025), accent if self.trim else lit(main, 0.68))

    def _collar(self, pen: Pen) -> None:
        main, _, accent = self.palette
        inner, edge = lit(main, 0.5), accent if self.trim else lit(main, 0.76)
        if self.cut == "hoodie":
            pen.fill(
                smooth(mirrored([(0.5, 0.03), (0.585, 0.05), (0.58, 0.13), (0.5, 0.2)])), inner
            )
            for x in (0.47, 0.53):
                pen.line([(x, 0.17), (x * 0.98 + 0.01, 0.3)], "white", 0.012)
        elif self.neck == "round neck":
            pen.fill(arc(0.5, 0.055, 0.1, 0.085, 0, 180), edge)
            pen.fill(arc(0.5, 0.05, 0.082, 0.06, 0, 180), inner)
        elif self.neck == "v-neck":
            pen.fill(np.array([(0.395, 0.05), (0.605, 0.05), (0.5, 0.25)]), edge)
            pen.fill(np.array([(0.42, 0.05), (0.58, 0.05), (0.5, 0.2)]), inner)
        elif self.neck == "roll neck":
            pen.fill(rect(0.405, 0.0, 0.595, 0.095, 0.03), lit(main, 0.84), lit(main, 0.7))
        else:
            pen.fill(np.array([(0.42, 0.045), (0.58, 0.045), (0.5, 0.16)]), inner)
            for side in (-1, 1):
                wing = np.array([(0.08, 0.02), (0.125, 0.075), (0.07, 0.18), (0.0, 0.14)])
                pen.fill(wing * (side, 1) + (0.5, 0), lit(edge, 1.05))

    def _draw_bottom(self, pen: Pen, rng: np.random.Generator) -> None:
        main, _, accent = self.palette
        if self.cut == "skirt":
            hem = 0.5 + self.length * 0.4
            outline = smooth(
                mirrored([(0.5, 0.1), (0.66, 0.1), (0.9 + self.flare, hem), (0.5, hem + 0.05)]), 2
            )
            self._cloth(
                pen,
                mirrored(
                    [
                        (0.66, 0.1),
                        (0.86 + 2 * self.flare, hem),
                        (0.7, hem + 0.03),
                        (0.5, hem + 0.04),
                    ]
                ),
                (0.1, 0.1, 0.9, 0.95),
            )
            del outline
        else:
            knee = 1.02 if self.cut == "trousers" else 0.52
            wide = 0.14 + self.flare + (0.05 if self.cut == "shorts" else 0)
            spread = float(rng.uniform(0.0, 0.08))
            for side in (-1, 1):
                leg = np.array(
                    [
                        (0.0, 0.1),
                        (0.2, 0.1),
                        (0.26 + spread, knee),
                        (0.26 + spread - wide - 0.04, knee),
                        (0.0, 0.42),
                    ]
                )
                self._cloth(pen, leg * (side, 1) + (0.5, 0), (0.12, 0.1, 0.88, 1.06))
                if self.trim:
                    cuff = np.array(
                        [
                            (0.26 + spread, knee),
                            (0.26 + spread - wide - 0.04, knee),
                            (0.26 + spread - wide - 0.04, knee - 0.05),
                            (0.256 + spread, knee - 0.05),
                        ]
                    )
                    pen.fill(cuff * (side, 1) + (0.5, 0), accent)
            pen.line([(0.5, 0.12), (0.5, 0.42)], lit(main, 0.66), 0.012)
        top = 0.2 if self.cut != "skirt" else 0.17
        pen.fill(
            rect(0.5 - top, 0.05, 0.5 + top, 0.12, 0.015), accent if self.trim else lit(main, 0.78)
        )
        for i in range(self.pockets):
            x = (0.6, 0.4)[i % 2]
            pen.fill(rect(x - 0.05, 0.2, x + 0.05, 0.32, 0.02), lit(main, 0.82))
            pen.fill(rect(x - 0.05, 0.2, x + 0.05, 0.222), accent if self.trim else lit(main, 0.66))


def _neck(rng: np.random.Generator, cut: str) -> str:
    if cut in ("shirt", "jacket"):
        return "collar"
    return pick(rng, ("round neck", "v-neck", "roll neck" if cut == "sweater" else "round neck"))


def _sleeve(rng: np.random.Generator, cut: str) -> float:
    if cut in ("sweater", "hoodie", "jacket"):
        return 0.6
    if cut in ("shirt", "dress"):
        return float(pick(rng, (0.24, 0.6) if cut == "shirt" else (0.0, 0.24, 0.6)))
    return 0.24 if cut == "t-shirt" else 0.0


def _folds(pen: Pen, rng: np.random.Generator) -> None:
    """Soft creases, kept inside the garment."""
    alpha = pen.image.getchannel("A")
    for _ in range(5):
        x, y = rng.uniform(0.25, 0.75), rng.uniform(0.2, 0.9)
        crease = smooth([(-0.015, 0), (0, -0.16), (0.02, 0), (0, 0.16)]) + (x, y)
        pen.fill(turned(crease, float(rng.uniform(-50, 50)), (x, y)), (30, 24, 44), alpha=0.12)
    pen.image.putalpha(alpha)
