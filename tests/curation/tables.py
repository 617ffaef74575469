"""Made-up rows of a manifest, features of them, and measurements where a test has no pictures."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.curation.features import unit


def rows(labels: list[str], split: str = "train", domain: str = "d") -> pd.DataFrame:
    paths = [f"{domain}/{split}/{n:03d}.jpg" for n in range(len(labels))]
    table = pd.DataFrame({"image_path": paths, "label": labels})
    return table.assign(domain=domain, split=split, role="train" if split == "train" else "both")


def together(*tables: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True)


def random_table(seed: int, labels=("a", "b", "c", "d", "a|b", "c|d|a")) -> pd.DataFrame:
    draw = random.Random(seed)
    train = rows(draw.choices(labels, weights=range(1, len(labels) + 1), k=40))
    return together(train, rows(["x", "y", "y"], "test"))


def directions(seed: int, count: int, dim: int = 16) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(count, dim)))


def clustered(labels: list[str], spread: float, seed: int = 0) -> np.ndarray:
    """A direction for each label, and noise around it."""
    codes, names = pd.factorize(pd.Series(labels))
    noise = np.random.default_rng(seed).normal(size=(len(labels), 16))
    return unit(directions(seed + 1, len(names))[codes] + spread * noise / 4)


def embedder(table: pd.DataFrame, features_ND: np.ndarray):
    """An `Embed` that knows the features of each path."""
    place = dict(zip(table["image_path"], range(len(table)), strict=True))
    return lambda paths, view: features_ND[[place[path] for path in paths]].astype(np.float32)


class Differences(NamedTuple):
    """Differences between pictures by a function of their paths; altered copies hardly differ."""

    differ: Callable[[str, str], float] = lambda one, other: 0.0

    def between(self, pairs: Sequence[tuple[str, str]], mirrored: bool) -> np.ndarray:
        return np.array([self.differ(*pair) for pair in pairs])

    def altered(self, paths: Sequence[str]) -> np.ndarray:
        return np.linspace(0, 0.1, 3 * len(paths))


ALIKE = Differences()  # pictures with similar features are copies beyond doubt
