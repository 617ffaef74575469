"""How many images classes have, before the rules and after, in bins of powers of two."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.data.manifest.memberships import memberships


class Bin(NamedTuple):
    """Classes of a range of sizes."""

    name: str  # "5–8" images
    before: int
    after: int


class Histogram(NamedTuple):
    """The class sizes of one domain."""

    domain: str
    bins: list[Bin]
    highest: int  # classes in the fullest bin, before or after
    classes: tuple[int, int]  # before, after
    median: tuple[float, float]  # images; 0 where there is no class


def class_sizes(table: pd.DataFrame) -> pd.Series:
    """Images of each class in train and val together, by domain and label.

    Rules touch train only, and classes that move to val are not lost: so test is left out, and
    nothing else.
    """
    members = memberships(table[table["split"] != "test"])
    return members.groupby(["domain", "label"]).size()


def histograms(before: pd.Series, after: pd.Series) -> list[Histogram]:
    """One a domain, all over the same bins: 1, 2, 3–4, 5–8, 9–16 ... images."""
    largest = max((int(sizes.max()) for sizes in (before, after) if len(sizes)), default=1)
    names = _names(_bin(np.array([largest]))[0] + 1)
    domains = sorted({*_domains(before), *_domains(after)})
    found = []
    for domain in domains:
        sizes = [_of(series, domain) for series in (before, after)]
        counts = [np.bincount(_bin(n), minlength=len(names)).tolist() for n in sizes]
        found.append(
            Histogram(
                domain=domain,
                bins=[Bin(*bar) for bar in zip(names, *counts, strict=True)],
                highest=max(map(max, counts)),
                classes=tuple(len(n) for n in sizes),
                median=tuple(float(np.median(n)) if len(n) else 0.0 for n in sizes),
            )
        )
    return found


def _bin(images: np.ndarray) -> np.ndarray:
    """0 for 1 image, 1 for 2, 2 for 3 and 4, k for 2^(k-1) + 1 to 2^k."""
    return np.ceil(np.log2(images)).astype(int)


def _names(bins: int) -> list[str]:
    ranges = [(2 ** (k - 1) + 1, 2**k) for k in range(2, bins)]
    return ["1", "2", *(f"{low:,}–{high:,}" for low, high in ranges)][:bins]


def _domains(sizes: pd.Series) -> list[str]:
    return sizes.index.get_level_values("domain").unique().tolist()


def _of(sizes: pd.Series, domain: str) -> np.ndarray:
    return sizes[sizes.index.get_level_values("domain") == domain].to_numpy()
