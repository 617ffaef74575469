"""Parameters of a piece of furniture: its kind, wood and fabric, and the numbers of its parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.colour import RGB
from toydomains.kit.subject import Subject, a, count, listed

KINDS = (
    "chair", "stool", "armchair", "sofa", "table", "desk", "bookcase", "dresser", "bed",
    "sideboard", "floor lamp", "bench",
)  # fmt: skip
UPHOLSTERED = ("armchair", "sofa", "bed", "floor lamp")
WOODS: dict[str, RGB] = {
    "oak": (204, 158, 108), "walnut": (122, 82, 58), "white": (240, 236, 228),
    "black": (62, 60, 64), "birch": (232, 206, 166), "teak": (172, 110, 66),
}  # fmt: skip
FABRICS = ("teal", "mustard", "rust", "olive", "navy", "pink", "grey", "cream", "red", "light blue")
BACKS = ("slatted", "barred", "panelled", "padded")
SHADES = {"slatted": "flared", "barred": "straight", "panelled": "pointed", "padded": "bulging"}
LEGS = ("straight", "turned", "splayed", "sled")


@dataclass(frozen=True)
class Furniture(Subject):
    """A piece of furniture; the numbers of its parts, and sizes in metres."""

    kin = ("kind", "wood", "fabric")

    kind: str
    wood: str
    fabric: str
    back: str
    legs: str
    parts: int
    columns: int
    buttons: bool
    wide: float
    tall: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Furniture:
        return cls(
            kind=pick(rng, KINDS),
            wood=pick(rng, tuple(WOODS)),
            fabric=pick(rng, FABRICS),
            back=pick(rng, BACKS),
            legs=pick(rng, LEGS),
            parts=int(rng.integers(2, 6)),
            columns=int(rng.integers(1, 4)),
            buttons=bool(rng.random() < 0.5),
            wide=float(rng.uniform(0.85, 1.2)),
            tall=float(rng.uniform(0.85, 1.2)),
        )

    @property
    def name(self) -> str:
        style = self.fabric if self.kind in UPHOLSTERED else self.wood
        return f"{style}-{self.kind}".replace(" ", "-")

    @property
    def phrase(self) -> str:
        if self.kind == "bed":
            stripes = "striped " * self.buttons
            return f"a bed with {a(self.fabric)} {stripes}blanket and {a(self.back)} {self.wood} headboard"
        if self.kind == "floor lamp":
            return f"a floor lamp with {a(self.fabric)} {SHADES[self.back]} shade and {a(self.wood)} foot"
        if self.kind in UPHOLSTERED:
            cushions = count(self.cushions, "cushion") if self.kind == "sofa" else ""
            arms = f"{'high' if self.square else 'low'} arms"
            seat = a("buttoned " * self.buttons + f"{self.fabric} {self.kind}")
            return f"{seat} with {listed(cushions, arms, f'{self.legs} {self.wood} legs')}"
        return f"{a(self.wood)} {self.kind} with {self._details}"

    @property
    def _details(self) -> str:
        """The visible parts of a wooden piece."""
        legs, back = f"{self.legs} legs", a(f"{self.back} back")
        vase = f"{a(self.fabric)} vase on it" if self.buttons else ""
        screen = "a screen on it" if self.buttons else ""
        shape = "square" if self.square else "round"
        shelf = "a shelf" if self.columns == 3 else ""
        top = ("a round top",) if self.columns == 1 else (legs, shelf)
        rows = f"{count(self.parts, 'row')} of {count(self.columns, 'drawer')}"
        return listed(
            *{
                "chair": (back, f"{a(self.fabric)} seat", legs),
                "stool": (f"a {shape} {self.fabric} seat", legs),
                "bench": (count(self.parts, "slat"), back if self.buttons else "no back", legs),
                "table": (*top, vase),
                "desk": (count(self.parts, "drawer"), legs, screen),
                "bookcase": (f"{count(self.parts, 'shelf')} of books",),
                "dresser": (rows, vase),
                "sideboard": (count(self.parts, "door"), legs, vase),
            }[self.kind]
        )

    @property
    def square(self) -> bool:
        """Whether the seat of a stool is square, the arms of a chair high."""
        return self.back in ("slatted", "panelled")

    @property
    def cushions(self) -> int:
        """The number of cushions of a sofa."""
        return min(self.parts, 4)

    @property
    def timber(self) -> RGB:
        """The colour of the wood."""
        return WOODS[self.wood]
