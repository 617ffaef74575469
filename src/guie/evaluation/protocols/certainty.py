"""How sure the numbers of a part are: intervals, and two models on the same queries.

Shape legend: G groups (domains or data sets), D draws, M metrics, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.evaluation.protocols.base import Headline, Protocol
from guie.evaluation.protocols.retrieval import HARMONIC, Scores
from guie.evaluation.resampling import resample
from guie.evaluation.statistics import (
    Comparison,
    harmonic_headline,
    mean_headline,
    paired,
    percentiles,
    verdict,
)

DRAWS = 2000
LEVEL = 0.95
HEADLINES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": mean_headline,
    "harmonic": harmonic_headline,
}


def intervals(scores: Scores, draws: int = DRAWS, level: float = LEVEL) -> dict[str, Any]:
    """Bootstrap intervals of all that `report_of` tells, over queries clustered by class.

    Returns {"level", "draws", "mean": {metric: [low, high]}, "pooled": .., "domains": {name: ..}};
    metrics of a group with one class have none there, and no metric has where every group is such.
    """
    common = scores.common
    mean: dict[str, Any] = {}
    pooled: dict[str, Any] = {}
    for keys in _alike(scores.values[common]):
        values_QM = scores.values[keys].to_numpy()
        by_group = resample(values_QM, scores.cluster_Q, scores.group_Q, draws, 0)
        for m, key in enumerate(keys):
            drawn_DG = by_group.mean_DGM[:, :, m]
            mean[key] = percentiles(mean_headline(drawn_DG), level)
            if key in HARMONIC:
                mean[f"harmonic_{key}"] = percentiles(harmonic_headline(drawn_DG), level)
        drawn = resample(values_QM, scores.cluster_Q, None, draws, 0)
        pooled |= _of_each(drawn.mean_DGM[:, 0], keys, level)
    return {
        "level": level,
        "draws": draws,
        "mean": mean,
        "pooled": pooled,
        "domains": {name: _of_group(scores, name, draws, level) for name in _scored(scores)},
    }


def compare(
    a: Scores, b: Scores, headline: Headline, draws: int = DRAWS, level: float = LEVEL
) -> Comparison:
    """How far b is ahead of a in that number. Raises UserError where the queries differ."""
    if not np.array_equal(a.path_Q, b.path_Q):
        raise UserError("the two embeddings were not scored on the same queries")
    key = headline.metric
    group_Q = None if headline.statistic not in HEADLINES else a.group_Q
    return paired(
        a.values[key].to_numpy(),
        b.values[key].to_numpy(),
        a.cluster_Q,
        group_Q,
        headline=HEADLINES.get(headline.statistic, mean_headline),
        draws=draws,
        level=level,
    )


def against(
    protocol: Protocol,
    ours: Mapping[str, Scores],
    theirs: Mapping[str, Scores],
    names: tuple[str, str],
) -> dict[str, Any]:
    """Is this model ahead of the other, headline by headline.

    Args:
        ours, theirs: by part, what its queries score.
        names: of this model and of the other.

    Returns {"embeddings": the other's name, "differences": {headline: ..}, "verdicts": [sentence]};
    of headlines that are no mean over queries (GAP, NMI) none.
    """
    found = {
        headline.title: compare(theirs[headline.part], ours[headline.part], headline)
        for headline in protocol.headlines
        if headline.statistic in ("mean", "pooled", "harmonic")
        and headline.metric in ours[headline.part].values
    }
    mine, other = names
    return {
        "embeddings": other,
        "differences": {title: asdict(one) for title, one in found.items()},
        "verdicts": [verdict(one, (other, mine), title) for title, one in found.items()],
    }


def _scored(scores: Scores) -> list[str]:
    """Groups in which a query has a value."""
    scored_Q = scores.values[scores.common].notna().any(axis=1).to_numpy()
    return sorted(pd.unique(scores.group_Q[scored_Q]))


def _of_group(
    scores: Scores, name: str, draws: int, level: float
) -> dict[str, tuple[float, float] | None]:
    own_Q = scores.group_Q == name
    values = scores.values.loc[own_Q, [k for k in scores.values if k in scores.part.keys(name)]]
    found: dict[str, tuple[float, float] | None] = {}
    for keys in _alike(values):
        drawn = resample(values[keys].to_numpy(), scores.cluster_Q[own_Q], None, draws, 0)
        found |= _of_each(drawn.mean_DGM[:, 0], keys, level)
        if drawn.lone_groups:
            found |= dict.fromkeys(keys)
    return found


def _alike(values: pd.DataFrame) -> list[list[str]]:
    """Metrics by the queries that have them: of labels all alike, of grades every level by itself."""
    sets: dict[bytes, list[str]] = {}
    for key in values:
        has_Q = values[key].notna().to_numpy()
        if has_Q.any():
            sets.setdefault(has_Q.tobytes(), []).append(str(key))
    return list(sets.values())


def _of_each(mean_DM: np.ndarray, keys: list[str], level: float) -> dict[str, Any]:
    return {key: percentiles(mean_DM[:, m], level) for m, key in enumerate(keys)}
