"""The charts of the page, a panel a domain, each as wide as a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from guie.evaluation.diagnosis import DEPTH, occurrences
from guie.report.figures.diagnosis import (
    difficulty_panel,
    gap_panel,
    occurrence_panel,
    recall_panel,
)
from guie.report.pages.evaluation.scored import Look, asked_domains
from guie.report.pages.svg import inline_svg

RANKS = (1, 2, 3, 4, 5, 8, 10, 15, 20, 30, 40, 50, 70, DEPTH)
MOST_PANELS = 24  # of a kind: the domains with the most queries
MEAN = "mean over domains"


class Panel(NamedTuple):
    title: str
    about: str
    chart: Markup


def recall_panels(looks: Sequence[Look], table: pd.DataFrame) -> list[Panel]:
    """R@k over k of the mean over domains, then of each domain, a line a model."""
    by_model = {look.name: _recalls(look, table) for look in looks}
    panels = []
    for place, domain in enumerate([MEAN, *largest_domains(looks[0], table)]):
        values = pd.DataFrame(
            {
                name: recalls.mean(axis=1) if domain == MEAN else recalls[domain]
                for name, recalls in by_model.items()
            }
        )
        about = ", ".join(f"R@10 {number:.3f}" for number in values.loc[10])
        label = f"Recall over k, {domain}: {about}"
        panels.append(_panel(domain, about, recall_panel(values), f"recall-{place}", label))
    return panels


def gap_panels(look: Look, table: pd.DataFrame) -> list[Panel]:
    """Distances to right and wrong answers, a panel a domain."""
    found = look.gaps
    kinds = {
        "nearest right": found.positive_S,
        "any right": found.any_positive_S,
        "nearest wrong": found.negative_S,
        "any wrong": found.any_negative_S,
    }
    domain_S = table["domain"].to_numpy()[found.query_S]
    most = float(np.nanmax(np.concatenate(list(kinds.values()))))
    panels = []
    for place, domain in enumerate(largest_domains(look, table)):
        own_S = domain_S == domain
        apart_S = found.negative_S[own_S] - found.positive_S[own_S]
        about = _apart(apart_S[np.isfinite(apart_S)])
        figure = gap_panel({kind: values[own_S] for kind, values in kinds.items()}, most)
        panels.append(_panel(domain, about, figure, f"gaps-{place}", f"Distances, {domain}"))
    return panels


def _apart(apart_S: np.ndarray) -> str:
    if not len(apart_S):
        return "no wrong answer in the index"
    apart = float(np.median(apart_S))
    side = "farther" if apart >= 0 else "nearer"
    return f"the nearest wrong {abs(apart):.3f} {side} than the nearest right, median"


def difficulty_panels(
    classes: pd.DataFrame, colors: Mapping[str, str], domains: Sequence[str]
) -> list[Panel]:
    """Classes by their R@1, a panel a domain. `classes` is of `by_class`."""
    panels = []
    for place, domain in enumerate(domains):
        values_C = classes.loc[classes["domain"] == domain, "r_at_1"].to_numpy()
        about = f"{len(values_C):,} classes, {(values_C == 0).sum():,} of them never right"
        figure = difficulty_panel(values_C, colors[domain])
        label = f"Classes by R@1, {domain}"
        panels.append(_panel(domain, about, figure, f"difficulty-{place}", label))
    return panels


def occurrence_chart(looks: Sequence[Look]) -> Markup:
    """How many images are found how often."""
    counts = {look.name: occurrences(look.near) for look in looks}
    return inline_svg(occurrence_panel(counts), "hubs", "Images by how often they are found")


def largest_domains(look: Look, table: pd.DataFrame, most: int = MOST_PANELS) -> list[str]:
    """The domains that there is room for: those with the most queries, sorted."""
    counts = pd.Series(asked_domains(look.near, table)).value_counts()
    return sorted(str(name) for name in counts.index[:most])


def _recalls(look: Look, table: pd.DataFrame) -> pd.DataFrame:
    """A row a k, a column a domain."""
    domain_Q = asked_domains(look.near, table)
    found = {k: pd.Series(look.near.recall_at(k)).groupby(domain_Q).mean() for k in RANKS}
    return pd.DataFrame(found).T


def _panel(domain: str, about: str, figure: Figure, name: str, label: str) -> Panel:
    return Panel(domain, about, inline_svg(figure, name, label))
