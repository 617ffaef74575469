"""Parameters of a character: an animal, its clothes, the thing it holds, the background."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import pick
from toydomains.kit.colour import PALETTES
from toydomains.kit.subject import Subject, a, listed

ANIMALS: dict[str, str] = {
    "cat": "grey", "bear": "brown", "rabbit": "white", "fox": "orange", "owl": "tan",
    "pig": "pink", "mouse": "grey", "frog": "green", "dog": "tan", "penguin": "charcoal",
}  # fmt: skip
HATS = ("no hat", "a top hat", "a beret", "a crown", "a bobble hat", "a straw hat", "a flower")
WEAR = ("plain", "striped", "dotted", "checked", "zigzag", "starry", "diamond")
THINGS = ("heart", "star", "fish", "flower", "cup", "apple", "leaf", "boat", "moon", "bird")
SETTINGS = ("hills", "stars", "clouds", "rain", "flowers", "waves")


@dataclass(frozen=True)
class Character(Subject):
    """An animal in clothes; the same in both drawing styles."""

    kin = ("animal", "palette", "setting")

    animal: str
    palette: tuple[str, str, str]
    hat: str
    wear: str
    repeats: int
    thing: str
    side: int
    raised: bool
    glasses: bool
    scarf: bool
    trousers: bool
    setting: str
    build: float

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Character:
        return cls(
            animal=pick(rng, tuple(ANIMALS)),
            palette=pick(rng, PALETTES),
            hat=pick(rng, HATS),
            wear=pick(rng, WEAR),
            repeats=int(rng.integers(3, 6)),
            thing=pick(rng, THINGS),
            side=pick(rng, (-1, 1)),
            raised=bool(rng.random() < 0.5),
            glasses=bool(rng.random() < 0.4),
            scarf=bool(rng.random() < 0.4),
            trousers=bool(rng.random() < 0.5),
            setting=pick(rng, SETTINGS),
            build=float(rng.uniform(0.85, 1.2)),
        )

    @property
    def name(self) -> str:
        return f"{self.animal}-with-{self.thing}"

    @property
    def phrase(self) -> str:
        glasses, scarf = "glasses" if self.glasses else "", "a scarf" if self.scarf else ""
        worn = listed(self.hat, a(f"{self.wear} jumper"), glasses, scarf)
        return f"{a(self.animal)} with {worn}, holding {a(self.thing)}, {self.setting} behind"
