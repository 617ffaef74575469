"""Made-up rows of a manifest, and features of them."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd

from guie.curation.features import unit


def rows(labels: list[str], split: str = "train", domain: str = "d") -> pd.DataFrame:
    paths = [f"{domain}/{split}/{n:03d}.jpg" for n in range(len(labels))]
    table = pd.DataFrame({"image_path": paths, "label": labels})
    return table.assign(domain=domain, split=split, role="train" if split == "train" else "both")


def random_table(seed: int, labels=("a", "b", "c", "d", "a|b", "c|d|a")) -> pd.DataFrame:
    draw = random.Random(seed)
    train = rows(draw.choices(labels, weights=range(1, len(labels) + 1), k=40))
    return pd.concat([train, rows(["x", "y", "y"], "test")], ignore_index=True)


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
