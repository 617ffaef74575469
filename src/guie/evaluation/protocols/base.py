"""Define a protocol as data: queries, index, metrics and mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:  # `validate.py --help` lists the protocols, and must not wait for pandas
    import pandas as pd

Index = Literal["merged", "separate", "fused"]
HARMONIC = ("r_at_1", "map_at_r", "r_precision")  # metrics with a harmonic mean over domains
Statistic = Literal["mean", "pooled", "harmonic", "public", "private"]


@dataclass(frozen=True)
class Part:
    """One way to search: queries and index by their roles, scored by metrics of each query."""

    name: str
    index: Index  # see `guie.evaluation.search.searches`
    metrics: tuple[str, ...]  # keys of `guie.evaluation.metrics`
    # The column of the groups, which weigh equally in the mean and are the separate indexes. A table
    # without `dataset` uses domain.
    by: Literal["domain", "dataset"] = "domain"
    # Depths of Recall@k of some groups, in place of the default
    recalls: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    default_recalls: tuple[int, ...] = ()
    graded: bool = False  # by a file of grades, not by labels: see `guie.evaluation.graded`
    clusters: bool = False  # also report k-means NMI of each group
    recognition: bool = False  # also report GAP, GAP- and accuracy of the nearest neighbour
    public_and_private: bool = False  # also report the challenge's two leaderboards
    subset: str = ""  # only images with this name in the column `subsets`; "" for all
    # Re-identification: means over so many draws of one image of each class as the index, the others
    # as queries. 0: roles define queries and index.
    gallery_draws: int = 0

    def keys(self, group: str) -> tuple[str, ...]:
        """Return the metrics of one group."""
        depths = self.recalls.get(group, self.default_recalls)
        return (*self.metrics, *(f"recall_at_{k}" for k in depths if k > 1))


@dataclass(frozen=True)
class Headline:
    """One number that papers report."""

    title: str
    part: str
    statistic: Statistic
    metric: str

    def of(self, report: Mapping[str, Any]) -> float | None:
        """Return its value in the report of its part, or None if there is none."""
        if self.statistic == "harmonic":
            return report["mean"][f"harmonic_{self.metric}"]
        return report[self.statistic][self.metric]


@dataclass(frozen=True)
class Protocol:
    """A research protocol, as defined by its source."""

    name: str
    title: str
    source: str
    parts: tuple[Part, ...]
    headlines: tuple[Headline, ...]
    quirks: tuple[str, ...] = ()  # deviations of the reference implementation, off by default
    note: str = ""
    subsets: tuple[str, ...] = ()  # of the test set, scored separately if the table names them

    def over(self, table: pd.DataFrame) -> Protocol:
        """Return the protocol with each part repeated for every subset in the table, if it has any."""
        there = [name for name in self.subsets if members(table, name).any()]
        if not there:
            return self
        parts = tuple(
            replace(part, name=f"{part.name}, {name}", subset=name)
            for name in there
            for part in self.parts
        )
        headlines = tuple(
            replace(line, title=f"{line.title}, {name}", part=f"{line.part}, {name}")
            for name in there
            for line in self.headlines
        )
        return replace(self, parts=parts, headlines=headlines)


def members(table: pd.DataFrame, subset: str) -> np.ndarray:
    """Return whether each row belongs to a subset, "" for all; the column `subsets` joins names by `|`."""
    if not subset or "subsets" not in table:
        return np.full(len(table), not subset)
    return np.asarray(table["subsets"].str.split("|").map(lambda names: subset in names), bool)
