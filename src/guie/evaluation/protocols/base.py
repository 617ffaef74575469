"""What a protocol is: data that says who is query, who is index, which metrics, which mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Index = Literal["merged", "separate", "fused"]
Statistic = Literal["mean", "pooled", "harmonic", "public", "private"]


@dataclass(frozen=True)
class Part:
    """One way to search: queries and index by their roles, scored by metrics of each query.

    Attributes:
        index: see `guie.evaluation.searching.searches`.
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
    """

    name: str
    title: str
    source: str
    parts: tuple[Part, ...]
    headlines: tuple[Headline, ...]
    quirks: tuple[str, ...] = ()
    note: str = ""
