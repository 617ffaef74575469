"""Parameters of a landmark: its kind, stone and roof, storeys, openings and proportions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.colour import RGB
from toydomains.kit.subject import Subject, a, count, listed

KINDS = (
    "tower", "temple", "castle", "church", "lighthouse", "pagoda", "arch", "palace", "pyramid",
    "windmill",
)  # fmt: skip
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


@dataclass(frozen=True)
class Landmark(Subject):
    """A building; the numbers of its parts and its proportions."""

    kin = ("kind", "stone", "roof")

    kind: str
    stone: str
    roof: str
    top: str
    windows: str
    storeys: int
    columns: int
    flanks: int
    clock: bool
    banded: bool
    wide: float
    tall: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Landmark:
        return cls(
            kind=pick(rng, KINDS),
            stone=pick(rng, tuple(STONES)),
            roof=pick(rng, tuple(ROOFS)),
            top=pick(rng, TOPS),
            windows=pick(rng, WINDOWS),
            storeys=int(rng.integers(2, 6)),
            columns=int(rng.integers(3, 8)),
            flanks=int(rng.integers(0, 3)),
            clock=bool(rng.random() < 0.35),
            banded=bool(rng.random() < 0.4),
            wide=float(rng.uniform(0.85, 1.2)),
            tall=float(rng.uniform(0.85, 1.2)),
        )

    @property
    def name(self) -> str:
        return f"{self.stone}-{self.kind}"

    @property
    def phrase(self) -> str:
        return f"{a(self.stone)} {self.kind} with {listed(*self._details)}"

    @property
    def _details(self) -> tuple[str, ...]:
        """The visible parts; empty where there is none."""
        top, cover = a(f"{self.top} {self.roof} roof"), a(self.roof)
        levels, windows = count(self.storeys, "storey"), f"{self.windows} windows"
        clock, piers = "a clock" if self.clock else "", "carved" if self.banded else "plain"
        sails = "four narrow sails" if self.banded else "four broad sails"
        hut, shrine = ("a hut", f"a shrine with {top}") if self.flanks else ("", "")
        return {
            "tower": (top, levels, windows, clock),
            "temple": (count(self.columns, "column"), f"{cover} roof" if self.flanks else top),
            "castle": (count(self.towers, "tower"), windows, top),
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

    @property
    def towers(self) -> int:
        """The number of turrets of a castle."""
        return 4 if self.flanks == 1 else 2

    @property
    def steeples(self) -> int:
        """The number of steeples of a church."""
        return 2 if self.flanks == 1 else 1

    @property
    def wall(self) -> RGB:
        """The colour of the stone."""
        return STONES[self.stone]

    @property
    def cover(self) -> RGB:
        """The colour of the roof."""
        return ROOFS[self.roof]
