"""Apparel: garments on a table. A class is a cut, a pattern, a palette, a neck, pockets, a print."""

from dataclasses import dataclass

import numpy as np

from toydomains.kit.colour import PALETTES, lit
from toydomains.kit.ornament import EMBLEMS, PATTERNS, emblem, pattern
from toydomains.kit.outline import Points, arc, ellipse, mirrored, rect, smooth, turned
from toydomains.kit.pen import Pen, pick
from toydomains.kit.photo import Pose, View, blank, develop, frame, placed
from toydomains.kit.scene import tabletop
from toydomains.kit.subject import Subject, a, chance, count, drawn, listed, one_of, real

TOPS = ("t-shirt", "shirt", "sweater", "hoodie", "tank top", "jacket", "dress")
PRINTED = ("t-shirt", "sweater", "tank top", "hoodie")  # may have a motif on the front
CUTS = (*TOPS, "dress", "skirt", "trousers", "shorts")
NECKS = {
    "shirt": ("collar",),
    "jacket": ("collar",),
    "sweater": ("round neck", "v-neck", "roll neck"),
}
SLEEVES = {
    "t-shirt": (0.24,), "shirt": (0.24, 0.6), "sweater": (0.6,), "hoodie": (0.6,), "jacket": (0.6,),
    "dress": (0.0, 0.24, 0.6),
}  # fmt: skip


@dataclass(frozen=True)
class Garment(Subject):
    """A garment; lengths are fractions of its width."""

    kin = ("cut", "palette", "pattern", "repeats")
    title = "{0.pattern}-{0.cut}"

    cut: str = one_of(CUTS)
    pattern: str = one_of(PATTERNS)
    repeats: int = one_of(range(4, 11))
    palette: tuple[str, str, str] = one_of(PALETTES)
    neck: str = one_of(lambda g: NECKS.get(g.cut, ("round neck", "v-neck", "round neck")))
    pockets: int = one_of(lambda g: range({"tank top": 1, "hoodie": 2}.get(g.cut, 3)))
    motif: str = drawn(
        lambda rng, g: pick(rng, tuple(EMBLEMS)) if g.cut in PRINTED and rng.random() < 0.6 else ""
    )
    length: float = real(0.74, 0.98)
    sleeve: float = one_of(lambda g: SLEEVES.get(g.cut, (0.0,)))
    flare: float = real(-0.02, 0.06)
    trim: bool = chance(0.5)

    @property
    def phrase(self) -> str:
        main, second, accent = self.palette
        colour = main if self.pattern == "plain" else f"{main} and {second} {self.pattern}"
        sleeves = {0.0: "sleeveless ", 0.24: "short-sleeved ", 0.6: "long-sleeved "}
        cut = (sleeves.get(self.sleeve, "") if self.cut in ("shirt", "dress") else "") + self.cut
        noun = f"{colour} {cut}"
        head = f"a pair of {noun}" if self.cut in ("trousers", "shorts") else a(noun)
        details = listed(
            f"{accent} trim" if self.trim else "no trim",
            a(f"{self.motif} print") if self.motif else "",
            count(self.pockets, "pocket") if self.pockets else "",
            f"a {self.neck}" if self.cut in TOPS and self.cut != "hoodie" else "",
        )
        return f"{head} with {details}"

    def view(self, rng: np.random.Generator, role: str) -> View:
        size = frame(rng)
        scene = tabletop(rng, size)
        extent = (-0.1, -0.02, 1.1, 1.12) if self.cut in TOPS else (0.05, 0.0, 0.95, 1.05)
        pose = Pose(scale=(0.86, 1.12), turn_deg=22, tilt=0.08, shift=0.07)
        pen = blank(size, placed(rng, extent, size, pose))
        (draw_top if self.cut in TOPS else draw_bottom)(self, pen, rng)
        alpha = pen.image.getchannel("A")
        for _ in range(5):  # soft creases, clipped to the garment
            x, y = rng.uniform(0.25, 0.75), rng.uniform(0.2, 0.9)
            crease = smooth([(-0.015, 0), (0, -0.16), (0.02, 0), (0, 0.16)]) + (x, y)
            pen.fill(turned(crease, rng.uniform(-50, 50), (x, y)), (30, 24, 44), alpha=0.12)
        pen.image.putalpha(alpha)
        return develop(rng, scene, pen.image, lift_px=4)


def _cloth(g: Garment, pen: Pen, outline: Points, quad: Points, sleeve: bool = False) -> None:
    """Fill an outline with the garment's colour, and with its pattern, which is stretched to `quad`."""
    main, second, accent = g.palette
    light, shade = (0.96, 0.86) if sleeve else (1.06, 0.93)
    with pen.inside(outline) as cloth:
        cloth.fill(outline, lit(main, light), lit(main, shade))
        repeats = max(3, g.repeats - 1) if sleeve else g.repeats
        pattern(cloth.on(quad), g.pattern, repeats, second, accent)


def draw_top(g: Garment, pen: Pen, rng: np.random.Generator) -> None:
    """Draw anything with shoulders, the neck at y = 0.05; the arms vary a little in every view."""
    main, _, accent = g.palette
    hem = g.length if g.cut != "dress" else 1.08
    wide = 0.27 + g.flare + (0.16 if g.cut == "dress" else 0.0)
    shoulder = 0.2 if g.cut == "tank top" else 0.27
    for side in (-1, 1) if g.sleeve else ():
        angle = -side * float(rng.uniform(*((16, 40) if g.sleeve > 0.3 else (38, 52))))
        arm = [(-0.1, 0.0), (0.075, 0.0), (0.06, g.sleeve), (-0.06, g.sleeve)]
        grain, cuff = rect(-0.12, -0.05, 0.12, 0.75), rect(-0.063, g.sleeve - 0.04, 0.063, g.sleeve)
        spot = (0.5 + side * 0.225, 0.17)
        limb, grain, cuff = (turned(points, angle, (0, 0)) + spot for points in (arm, grain, cuff))
        _cloth(g, pen, limb, grain, sleeve=True)
        if g.trim:
            pen.fill(cuff, accent)
    if g.cut == "hoodie":
        hood = [(0.5, -0.02), (0.62, 0.0), (0.66, 0.12), (0.5, 0.2)]
        pen.fill(smooth(mirrored(hood)), lit(main, 0.82))
    half = [(0.6, 0.06), (0.5 + shoulder, 0.11), (0.755, 0.36), (0.74, 0.6), (0.5 + wide, hem)]
    body = mirrored([*half, (0.5, hem + 0.015)])
    _cloth(g, pen, body, rect(0.08, 0.06, 0.92, 1.1))
    if g.trim or g.cut in ("sweater", "hoodie", "jacket"):
        edge = accent if g.trim else lit(main, 0.8)
        pen.fill(rect(0.5 - wide, hem - 0.035, 0.5 + wide, hem + 0.012), edge)
    _front(g, pen, hem)
    _collar(g, pen)


def _front(g: Garment, pen: Pen, hem: float) -> None:
    main, second, accent = g.palette
    if g.cut in ("shirt", "jacket"):
        pen.line([(0.5, 0.14), (0.5, hem)], lit(main, 0.68), 0.012)
        button = accent if g.cut == "shirt" else lit(second, 0.9)
        for y in np.linspace(0.24, hem - 0.1, 5):
            pen.fill(ellipse(0.522, y, 0.014, steps=10), button)
    if g.motif:
        pen.fill(ellipse(0.5, 0.42, 0.16), accent)
        emblem(pen.on(rect(0.4, 0.32, 0.6, 0.52)), g.motif, main, accent)
    if g.cut == "hoodie" and g.pockets:
        pouch = mirrored([(0.58, hem - 0.25), (0.66, hem - 0.07), (0.5, hem - 0.07)])
        pen.fill(pouch, lit(main, 0.84))
        return
    y = {"dress": 0.62, "shirt": 0.3}.get(g.cut, hem - 0.28)
    for x in (0.565, 0.325)[: g.pockets]:
        pen.fill(rect(x, y, x + 0.11, y + 0.13, 0.02), lit(main, 0.82))
        pen.fill(rect(x, y, x + 0.11, y + 0.025), accent if g.trim else lit(main, 0.68))


def _collar(g: Garment, pen: Pen) -> None:
    main, _, accent = g.palette
    inner, edge = lit(main, 0.5), accent if g.trim else lit(main, 0.76)
    if g.cut == "hoodie":
        pen.fill(smooth(mirrored([(0.5, 0.03), (0.585, 0.05), (0.58, 0.13), (0.5, 0.2)])), inner)
        for x in (0.47, 0.53):
            pen.line([(x, 0.17), (x * 0.98 + 0.01, 0.3)], "white", 0.012)
    elif g.neck == "round neck":
        pen.fill(arc(0.5, 0.055, 0.1, 0.085, 0, 180), edge)
        pen.fill(arc(0.5, 0.05, 0.082, 0.06, 0, 180), inner)
    elif g.neck == "v-neck":
        pen.fill([(0.395, 0.05), (0.605, 0.05), (0.5, 0.25)], edge)
        pen.fill([(0.42, 0.05), (0.58, 0.05), (0.5, 0.2)], inner)
    elif g.neck == "roll neck":
        pen.fill(rect(0.405, 0.0, 0.595, 0.095, 0.03), lit(main, 0.84), lit(main, 0.7))
    else:
        pen.fill([(0.42, 0.045), (0.58, 0.045), (0.5, 0.16)], inner)
        for side in (-1, 1):
            wing = np.array([(0.08, 0.02), (0.125, 0.075), (0.07, 0.18), (0.0, 0.14)])
            pen.fill(wing * (side, 1) + (0.5, 0), lit(edge, 1.05))


def draw_bottom(g: Garment, pen: Pen, rng: np.random.Generator) -> None:
    """Draw a skirt, trousers or shorts, from the waist at y = 0.05 down."""
    main, accent = g.palette[0], g.palette[2]
    if g.cut == "skirt":
        waist, hem, wide = 0.17, 0.5 + g.length * 0.4, 0.36 + 2 * g.flare
        half = [(0.66, 0.1), (0.5 + wide, hem), (0.7, hem + 0.03), (0.5, hem + 0.04)]
        _cloth(g, pen, mirrored(half), rect(0.1, 0.1, 0.9, 0.95))
    else:
        waist, end = 0.2, 1.02 if g.cut == "trousers" else 0.52
        outer = 0.26 + rng.uniform(0.0, 0.08)
        inner = outer - 0.18 - g.flare - (0.05 if g.cut == "shorts" else 0)
        leg = np.array([(0.0, 0.1), (0.2, 0.1), (outer, end), (inner, end), (0.0, 0.42)])
        for side in (-1, 1):
            trouser = leg * (side, 1) + (0.5, 0)
            _cloth(g, pen, trouser, rect(0.12, 0.1, 0.88, 1.06))
            if g.trim:
                pen.fill(rect(inner, end - 0.05, outer, end) * (side, 1) + (0.5, 0), accent)
        pen.line([(0.5, 0.12), (0.5, 0.42)], lit(main, 0.66), 0.012)
    band = accent if g.trim else lit(main, 0.78)
    pen.fill(rect(0.5 - waist, 0.05, 0.5 + waist, 0.12, 0.015), band)
    for x in (0.6, 0.4)[: g.pockets]:
        pen.fill(rect(x - 0.05, 0.2, x + 0.05, 0.32, 0.02), lit(main, 0.82))
        pen.fill(rect(x - 0.05, 0.2, x + 0.05, 0.222), accent if g.trim else lit(main, 0.66))
