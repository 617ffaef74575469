"""What the classes of all domains have in common: parameters, captions, invented words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from toydomains.kit.pen import Box, Colour, Pen, pick
from toydomains.kit.photo import View


@dataclass(frozen=True)
class Subject(ABC):
    """One class of a domain: everything that its views have in common."""

    kin: ClassVar[tuple[str, ...]]  # fields that sister classes share; the first is the kind
    media: ClassVar[tuple[str, ...]] = ("a photo of", "a picture of", "a snapshot of")

    @classmethod
    @abstractmethod
    def sample(cls, rng: np.random.Generator) -> Subject:
        """Draw a class from the domain's grammar."""

    def sister(self, rng: np.random.Generator) -> Subject:
        """Another class of the same kind, colours and style: a hard negative."""
        other = type(self).sample(rng)
        while getattr(other, self.kin[0]) != getattr(self, self.kin[0]):
            other = type(self).sample(rng)
        return replace(other, **{field: getattr(self, field) for field in self.kin})

    @property
    @abstractmethod
    def name(self) -> str:
        """A short readable name, words joined by hyphens: `striped-hoodie`."""

    @property
    @abstractmethod
    def phrase(self) -> str:
        """The class in plain English with its article: `a red striped hoodie with two pockets`."""

    def caption(self, rng: np.random.Generator, view: View) -> str:
        """Return a true sentence about a view, in one of several forms."""
        where = " ".join(word for word in (view.place, view.light) if word)
        medium = view.medium or pick(rng, self.media)
        forms = [f"{medium} {self.phrase} {where}", f"{medium} {self.phrase}, {where}"]
        if not view.medium:
            forms += [f"{self.phrase} {where}", f"{where}, {self.phrase}"]
        return pick(rng, forms)


def a(words: str) -> str:
    """Return the words with their indefinite article."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def listed(*parts: str) -> str:
    """Join the non-empty parts to an English list: `a, b and c`."""
    *most, last = [part for part in parts if part]
    return f"{', '.join(most)} and {last}" if most else last


NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count(number: int, noun: str) -> str:
    """Return `two pockets` or `one pocket`."""
    plural = noun if number == 1 else noun[:-1] + "ves" if noun.endswith("f") else noun + "s"
    return f"{NUMBERS[number]} {plural}"


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
