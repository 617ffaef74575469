"""What the classes of all domains have in common: parameters, captions, invented words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from toydomains.kit.pen import Box, Colour, Pen, pick
from toydomains.kit.photo import View


def drawn(draw: Callable[[np.random.Generator, Any], Any]) -> Any:
    """Declare a parameter that `draw` takes from a generator and the parameters declared before it."""
    return field(metadata={"draw": draw})


def one_of(options: Sequence | Callable[[Any], Sequence]) -> Any:
    """Declare a parameter that is one of the options, all equally likely.

    A function returns the options from the parameters declared before.
    """
    return drawn(lambda rng, known: pick(rng, options(known) if callable(options) else options))


def real(low: float, high: float) -> Any:
    """Declare a real number between `low` and `high`."""
    return drawn(lambda rng, _: rng.uniform(low, high))


def chance(share: float) -> Any:
    """Declare a truth value that is true in `share` of the classes."""
    return drawn(lambda rng, _: rng.random() < share)


class Sampled:
    """A dataclass whose fields declare how they are drawn."""

    @classmethod
    def sample(cls, rng: np.random.Generator) -> Any:
        """Draw the fields, in the order of their declaration."""
        known = SimpleNamespace()
        for parameter in fields(cls):  # type: ignore[arg-type]
            setattr(known, parameter.name, parameter.metadata["draw"](rng, known))
        return cls(**vars(known))


@dataclass(frozen=True)
class Subject(Sampled, ABC):
    """One class of a domain: everything that its views have in common."""

    kin: ClassVar[tuple[str, ...]]  # fields that sister classes share; the first is the kind
    title: ClassVar[str]  # the name's format; field 0 is the class

    def sister(self, rng: np.random.Generator) -> Subject:
        """Another class of the same kind, colours and style: a hard negative."""
        other = type(self).sample(rng)
        while getattr(other, self.kin[0]) != getattr(self, self.kin[0]):
            other = type(self).sample(rng)
        return replace(other, **{field: getattr(self, field) for field in self.kin})

    @property
    def name(self) -> str:
        """A short readable name, words joined by hyphens: `striped-hoodie`."""
        return self.title.format(self).lower().replace(" ", "-")

    @property
    @abstractmethod
    def phrase(self) -> str:
        """The class in plain English with its article: `a red striped hoodie with two pockets`."""

    @abstractmethod
    def view(self, rng: np.random.Generator, role: str) -> View:
        """Take a picture of the class; `role` is `train`, `query`, `index` or `both`."""

    def caption(self, rng: np.random.Generator, view: View) -> str:
        """Return a true sentence about a view, in one of several forms."""
        where = " ".join(word for word in (view.place, view.light) if word)
        medium = view.medium or pick(rng, ("a photo of", "a picture of", "a snapshot of"))
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
    return f"{NUMBERS[number]} {noun}{'' if number == 1 else 's'}"


_SYLLABLES = (
    "ba", "bo", "da", "do", "fe", "fi", "ga", "go", "ha", "ki", "ko", "la", "le", "li", "lo", "lu",
    "ma", "mi", "mo", "na", "no", "pa", "pi", "po", "ra", "ri", "ro", "sa", "se", "so", "ta", "te",
    "ti", "to", "va", "vi", "vo", "ya", "zo",
)  # fmt: skip


def invented() -> Any:
    """Declare a pronounceable word of two or three syllables, in capitals."""
    return drawn(
        lambda rng, _: "".join(pick(rng, _SYLLABLES) for _ in range(rng.integers(2, 4))).upper()
    )


@dataclass(frozen=True)
class Lettering(Sampled):
    """How words are set; weights and spacings in pixels of a 44 px face."""

    weight: int = one_of(range(4))
    spacing: int = one_of((0, 2, 6, 10))
    slant: float = one_of((0.0, 0.0, 0.0, 0.25))
    capitals: bool = chance(0.7)

    def write(self, pen: Pen, words: str, box: Box, colour: Colour) -> None:
        """Set a line of words inside a box."""
        words = words if self.capitals else words.capitalize()
        pen.text(words, box, colour, weight=self.weight, spacing=self.spacing, slant=self.slant)
