"""Parameters of a garment: a cut, a pattern, a palette, a neck, pockets, a print."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.colour import PALETTES
from toydomains.kit.emblem import EMBLEMS
from toydomains.kit.pattern import PATTERNS
from toydomains.kit.subject import Subject, a, count, listed

TOPS = ("t-shirt", "shirt", "sweater", "hoodie", "tank top", "jacket", "dress")
CUTS = (*TOPS, "dress", "skirt", "trousers", "shorts")


@dataclass(frozen=True)
class Garment(Subject):
    """A garment; lengths are fractions of its width."""

    kin = ("cut", "palette", "pattern", "repeats")

    cut: str
    pattern: str
    repeats: int
    palette: tuple[str, str, str]
    neck: str
    pockets: int
    motif: str
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
            pockets=int(rng.integers(0, {"tank top": 1, "hoodie": 2}.get(cut, 3))),
            motif=pick(rng, tuple(EMBLEMS)) if plain_front and rng.random() < 0.6 else "",
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
        noun = f"{colour} {cut}"
        head = f"a pair of {noun}" if self.cut in ("trousers", "shorts") else a(noun)
        details = listed(
            f"{accent} trim" if self.trim else "no trim",
            a(f"{self.motif} print") if self.motif else "",
            count(self.pockets, "pocket") if self.pockets else "",
            f"a {self.neck}" if self.cut in TOPS and self.cut != "hoodie" else "",
        )
        return f"{head} with {details}"


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
