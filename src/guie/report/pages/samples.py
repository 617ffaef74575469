"""Which classes and images of each domain are shown."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.base.seeds import seeded_draws
from guie.data.manifest.memberships import memberships

CLASSES, IMAGES = 6, 4  # of a domain, of a class
MAX_PICTURES = 720  # many domains show fewer classes each
SPLITS = ("train", "val", "test")


class SampleClass(NamedTuple):
    label: str
    images: int  # of the class in the split
    paths: list[str]


class Gallery(NamedTuple):
    """Some classes of a domain, of the first split that it has."""

    domain: str
    split: str
    total: int  # classes
    classes: list[SampleClass]


def galleries(table: pd.DataFrame, seed: int) -> tuple[list[Gallery], int]:
    """A gallery a domain, drawn at random by `seed`, and how many domains there is no room for."""
    domains = sorted(table["domain"].unique())
    shown = domains[: MAX_PICTURES // IMAGES]
    classes = max(1, min(CLASSES, MAX_PICTURES // (IMAGES * max(len(shown), 1))))
    found = []
    for domain in shown:
        rows = table[table["domain"] == domain]
        split = next(name for name in SPLITS if (rows["split"] == name).any())
        members = memberships(rows[rows["split"] == split])
        members["image_path"] = rows["image_path"].reindex(members["row"]).to_numpy()
        labels = _drawn(members["label"].unique(), seed)
        chosen = [_sample(label, members, seed) for label in labels[:classes]]
        found.append(Gallery(domain, split, len(labels), chosen))
    return found, len(domains) - len(shown)


def _sample(label: str, members: pd.DataFrame, seed: int) -> SampleClass:
    paths = members.loc[members["label"] == label, "image_path"].unique()
    return SampleClass(label, len(paths), _drawn(paths, seed)[:IMAGES])


def _drawn(names: np.ndarray, seed: int) -> list[str]:
    return [names[place] for place in np.argsort(seeded_draws(seed, names), kind="stable")]
