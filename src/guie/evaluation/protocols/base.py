"""What a protocol is: data that says who is query, who is index, which metrics, which mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.evaluation.search import BlockCache

Index = Literal["merged", "separate", "fused"]
TEXTS = "texts"  # the data set of queries of words
Statistic = Literal["mean", "pooled", "harmonic", "public", "private"]


@dataclass(frozen=True)
class Part:
    """One way to search: queries and index by their roles, scored by metrics of each query.

    Attributes:
        index: see `guie.evaluation.search.searches`.
        metrics: keys of `guie.evaluation.metrics`.
        by: the column whose values are averaged alike, and searched apart: a table without
            `dataset` goes by domain.
        recalls: depths of Recall@k of some data sets (by `dataset` or domain), in place of
            `default_recalls`.
        graded: relevance comes from a file of grades instead of labels, and the whole index is
            ranked; see `guie.evaluation.graded`.
        clusters: NMI of a k-means beside it, of each group by itself.
        recognition: GAP, GAP- and accuracy of a nearest-neighbour classifier beside it.
        public_and_private: the challenge's two leaderboards beside it.
        subset: of the images that the column `subsets` of the table gives this name, no others are
            asked or searched; "": of all.
        gallery_draws: re-identification: one image of each class, drawn, is the index, the others
            are queries; the mean over so many draws. 0: roles say who is query and who is index.
    """

    name: str
    index: Index
    metrics: tuple[str, ...]
    by: Literal["domain", "dataset"] = "domain"
    recalls: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    default_recalls: tuple[int, ...] = ()
    graded: bool = False
    clusters: bool = False
    recognition: bool = False
    public_and_private: bool = False
    subset: str = ""
    gallery_draws: int = 0

    def keys(self, group: str) -> tuple[str, ...]:
        """The metrics of one group."""
        depths = self.recalls.get(group, self.default_recalls)
        return (*self.metrics, *(f"recall_at_{k}" for k in depths if k > 1))


@dataclass(frozen=True)
class Headline:
    """One number that papers print."""

    title: str
    part: str
    statistic: Statistic
    metric: str

    def of(self, report: Mapping[str, Any]) -> float | None:
        """Its value in the report of its part; None where that has none."""
        if self.statistic == "harmonic":
            return report["mean"][f"harmonic_{self.metric}"]
        return report[self.statistic][self.metric]


@dataclass(frozen=True)
class Protocol:
    """A research protocol, from its source.

    Attributes:
        quirks: what the peer's own code does otherwise, each a switch that is off by default.
        subsets: parts of the test set that are scored each by itself, where the table names them.
    """

    name: str
    title: str
    source: str
    parts: tuple[Part, ...]
    headlines: tuple[Headline, ...]
    quirks: tuple[str, ...] = ()
    note: str = ""
    subsets: tuple[str, ...] = ()

    def over(self, table: pd.DataFrame) -> Protocol:
        """The same with each part once for every subset that the table has; as it is where it has none."""
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


@dataclass(frozen=True)
class Options:
    """How a protocol is run, whichever it is.

    Attributes:
        quirks: of `QUIRKS`, those that are on.
        draws: of the bootstrap; 0 for no intervals.
        kept: blocks of an earlier start, and those of this process.
        grades: as of `read_grades`, which graded parts need.
    """

    quirks: frozenset[str] = frozenset()
    draws: int = 0
    kept: BlockCache | None = None
    grades: pd.DataFrame | None = None

    def within(self, name: str) -> Options:
        """The same for one part, whose blocks are kept apart."""
        return replace(self, kept=self.kept and self.kept.within(name))


def members(table: pd.DataFrame, subset: str) -> np.ndarray:
    """Boolean per row: it is of that subset, by the column `subsets`, several joined by `|`."""
    if "subsets" not in table:
        return np.zeros(len(table), bool)
    return np.asarray(table["subsets"].str.split("|").map(lambda names: subset in names), bool)


def with_texts(table: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """The table and, as queries, the rows of the companion `texts`: of a data set of their own, `texts`.

    Raises UserError where a text has the name of an image, or of another text.
    """
    again = texts["image_path"].isin(table["image_path"]) | texts.duplicated("image_path")
    if again.any():
        raise UserError(f"--texts: {texts['image_path'][again].iloc[0]} is named already")
    dataset = table["dataset"] if "dataset" in table else table["domain"]
    asked = texts.drop(columns="text").assign(role="query", dataset=TEXTS)
    both = pd.concat([table.assign(dataset=dataset), asked], ignore_index=True)
    return both.fillna({"subsets": ""}) if "subsets" in both else both


def with_subsets(table: pd.DataFrame, subsets: pd.DataFrame) -> pd.DataFrame:
    """The table with the column `subsets`, from the companion (subset, image_path)."""
    named = subsets.groupby("image_path")["subset"].agg("|".join)
    return table.assign(subsets=table["image_path"].map(named).fillna(""))
