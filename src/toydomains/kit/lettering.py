"""Invented words: brands and shop names made of syllables, and how they are set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toydomains.kit.canvas import Box, Colour, Pen, pick

_SYLLABLES = (
    "ba", "bo", "da", "do", "fe", "fi", "ga", "go", "ha", "ki", "ko", "la", "le", "li", "lo", "lu",
    "ma", "mi", "mo", "na", "no", "pa", "pi", "po", "ra", "ri", "ro", "sa", "se", "so", "ta", "te",
    "ti", "to", "va", "vi", "vo", "ya", "zo",
)  # fmt: skip


def invented(rng: np.random.Generator, shortest: int = 2, longest: int = 3) -> str:
    """A pronounceable word, in capitals."""
    length = int(rng.integers(shortest, longest + 1))
    return "".join(pick(rng, _SYLLABLES) for _ in range(length)).upper()


@dataclass(frozen=True)
class Lettering:
    """How words are set; weights and spacings in pixels of a 44 px face."""

    weight: int
    spacing: int
    slant: float
    capitals: bool

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Lettering:
        """Draw a style."""
        return cls(
            weight=int(rng.integers(0, 4)),
            spacing=int(pick(rng, (0, 2, 6, 10))),
            slant=float(pick(rng, (0.0, 0.0, 0.0, 0.25))),
            capitals=bool(rng.random() < 0.7),
        )

    def write(self, pen: Pen, words: str, box: Box, colour: Colour) -> None:
        """Set a line of words inside a box."""
        words = words if self.capitals else words.capitalize()
        pen.text(words, box, colour, weight=self.weight, spacing=self.spacing, slant=self.slant)
