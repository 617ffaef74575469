"""Parameters of a dish: a base, toppings, a sauce, and the plate with its rim."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.colour import RGB
from toydomains.kit.subject import NUMBERS, Subject, a, listed

CHINAWARE = ("plate", "bowl", "square plate")
RIMS = ("plain", "ringed", "dotted", "leafy", "speckled", "two-tone")
CHINA = ("white", "cream", "light blue", "teal", "charcoal", "pink", "mint", "mustard")
BASES: dict[str, RGB] = {
    "rice": (246, 240, 222), "noodles": (236, 200, 122), "tomato soup": (214, 84, 52),
    "pea soup": (138, 168, 84), "pumpkin soup": (234, 154, 62), "salad": (122, 168, 80),
    "pizza": (240, 204, 116), "pancakes": (222, 160, 88), "pie": (216, 160, 96),
    "curry": (206, 146, 52), "porridge": (232, 216, 190), "chocolate cake": (104, 66, 50),
}  # fmt: skip
BAKED = ("pizza", "pancakes", "pie", "chocolate cake")
TOPPINGS = ("tomatoes", "eggs", "olives", "prawns", "mushrooms", "lemon slices", "berries",
            "basil leaves", "cucumber slices", "carrot sticks", "cheese cubes", "dumplings")  # fmt: skip
LAYOUTS = ("in a ring", "in a row", "in a heap", "scattered", "in two rows")
SAUCES = ("no", "zigzag", "spiral", "dotted")


@dataclass(frozen=True)
class Dish(Subject):
    """A dish: the recipe and its plating; the pieces vary a little in every view."""

    kin = ("base", "vessel", "china", "accent", "rim")

    vessel: str
    rim: str
    china: str
    accent: str
    base: str
    topping: str
    pieces: int
    layout: str
    garnish: str
    sauce: str
    sauce_colour: str
    spread: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Dish:
        china = pick(rng, CHINA)
        base, topping = pick(rng, tuple(BASES)), pick(rng, TOPPINGS)
        dry = base in BAKED
        return cls(
            vessel=pick(rng, (*CHINAWARE, "wooden board") if dry else (*CHINAWARE, "pan")),
            rim=pick(rng, RIMS),
            china=china,
            accent=pick(
                rng,
                ("blue", "rust", "dark green")
                if china in ("white", "cream", "pink", "mint")
                else ("cream", "white"),
            ),
            base=base,
            topping=topping,
            pieces=int(rng.integers(3, 9)),
            layout=pick(rng, LAYOUTS),
            garnish=pick(rng, tuple(t for t in TOPPINGS if t != topping)),
            sauce=pick(rng, SAUCES),
            sauce_colour=pick(rng, ("red", "white", "dark green", "brown", "mustard")),
            spread=float(rng.uniform(0.7, 0.95)),
        )

    @property
    def name(self) -> str:
        return f"{self.base}-with-{self.topping}".replace(" ", "-")

    @property
    def phrase(self) -> str:
        sauce = "" if self.sauce == "no" else a(f"{self.sauce} {self.sauce_colour} sauce")
        china, rim = self.vessel, ""
        if china in CHINAWARE:
            china, rim = f"{self.china} {china}", f" with {a(self.rim)} rim"
        inside = "in" if self.vessel in ("bowl", "pan") else "on"
        head = f"{self.base} with {NUMBERS[self.pieces]} {self.topping} {self.layout}"
        return f"{listed(head, self.garnish, sauce)} {inside} {a(china)}{rim}"
