"""What a mix may be made of: sources, each whole or with a cap on the images of a class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from guie.curation.classes.filters import cap_large


class Candidate(NamedTuple):
    """A source: a domain or a dataset; `cap` 0 takes all images of a class."""

    source: str
    cap: int = 0

    def __str__(self) -> str:
        return f"{self.source}@{self.cap}" if self.cap else self.source


Mix = frozenset[Candidate]


def candidates_of(table: pd.DataFrame, by: str, caps: Sequence[int | None]) -> list[Candidate]:
    """Every source of the train rows under every cap, sorted; a cap that cuts nothing is left out.

    Args:
        table: a manifest's rows.
        by: the column that names a source.
        caps: images of a class; None for all.
    """
    train = table[table["split"] == "train"]
    largest = train.groupby([by, "label"]).size().groupby(level=0).max()
    candidates = {
        Candidate(source, cap if cap and cap < images else 0)
        for source, images in largest.items()
        for cap in caps
    }
    return sorted(candidates)


def mix_name(mix: Iterable[Candidate]) -> str:
    """`cars@50+logos`: the same for the same mix, in any order."""
    return "+".join(str(candidate) for candidate in sorted(mix))


def mix_rows(table: pd.DataFrame, mix: Mix, by: str, seed: int) -> pd.DataFrame:
    """The train rows of a mix, indexed from 0. Which images a cap keeps depends on `seed`."""
    parts = []
    for source, cap in sorted(mix):
        rows = table[(table["split"] == "train") & (table[by] == source)].reset_index(drop=True)
        parts.append(cap_large(rows, cap, seed) if cap else rows)
    return pd.concat(parts, ignore_index=True)
