"""Retrieval by a part of a protocol: what each query scores, and the report made of it.

Shape legend: T rows of the table, Q queries, G groups (domains or data sets), D draws, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.evaluation import metrics
from guie.evaluation.protocols.base import Options, Part, members
from guie.evaluation.protocols.graded_parts import graded_scores
from guie.evaluation.searching import Embedded, Images, Searcher, galleries, searches

HARMONIC = ("r_at_1", "map_at_r", "r_precision")
ROUNDED = 3  # decimals, by the quirk
PLAIN = Options()


@dataclass(frozen=True)
class Scores:
    """What each query scores.

    Attributes:
        values: a row a query, by its row T, and of drawn galleries one for each draw; NaN where it has
            no positive, and in metrics that are not of its group.
        group_Q: its domain or data set. `cluster_Q`: its class.
    """

    part: Part
    values: pd.DataFrame
    group_Q: np.ndarray
    cluster_Q: np.ndarray
    path_Q: np.ndarray

    @property
    def common(self) -> list[str]:
        """The metrics that every group has."""
        sets = [set(self.part.keys(group)) for group in pd.unique(self.group_Q)]
        return [key for key in self.values.columns if all(key in keys for keys in sets)]


def search_part(
    part: Part,
    table: pd.DataFrame,
    embedded: Embedded,
    options: Options = PLAIN,
) -> list[pd.DataFrame]:
    """What the queries of each search of a part score; see `guie.evaluation.searching.Searcher`.

    Args:
        table: rows T of one split: image_path, label, domain, role, and dataset where there is one.
        embedded: unit vectors [T, D], or those of each domain's specialist.
    """
    images, group_T = images_of(part, table), groups_of(part, table)
    searcher = Searcher(images, embedded, options.kept, "query_counts" in options.quirks)
    found = []
    for search in searches(part.index, images, group_T):
        if part.graded:
            assert options.grades is not None
            found.append(graded_scores(images, table, embedded, search, options.grades))
            continue
        groups = pd.unique(group_T[search.query_Q])
        keys = list(dict.fromkeys(key for group in groups for key in part.keys(group)))
        drawn = galleries(search, images, table, part.gallery_draws) or [search]
        found += [searcher.score(one, keys) for one in drawn]
    return found


def retrieve(
    part: Part,
    table: pd.DataFrame,
    embedded: Embedded,
    options: Options = PLAIN,
) -> Scores:
    """Search as the part says; arguments as of `search_part`.

    Raises UserError where no query has a positive.
    """
    searched = search_part(part, table, embedded, options)
    found = [scores for scores in searched if len(scores)]
    if all(scores.isna().to_numpy().all() for scores in found):
        if part.graded:
            raise UserError(
                f"relevance.csv: of {sum(map(len, found))} queries none is graded an easy or hard image"
                " of the index; its paths are those of the manifest's image_path"
            )
        raise _unanswerable(sum(map(len, found)))
    values = pd.concat(found)
    rows = values.index.to_numpy()
    group_Q = groups_of(part, table)[rows]
    for group in pd.unique(group_Q):  # in one index all were scored alike
        others = [key for key in values if key not in part.keys(group)]
        values.loc[group_Q == group, others] = np.nan
    cluster_Q, path_Q = (table[c].to_numpy()[rows] for c in ("label", "image_path"))
    return Scores(part, values, group_Q, cluster_Q, path_Q)


def refuse_unanswerable(part: Part, table: pd.DataFrame) -> None:
    """Raise UserError as `retrieve` would, without embeddings, for a part that goes by labels and roles."""
    images = images_of(part, table)
    asked = list(searches(part.index, images, groups_of(part, table)))
    if not any(images.count_positives(one.query_Q, one.index_I).any() for one in asked):
        raise _unanswerable(sum(len(one.query_Q) for one in asked))


def _unanswerable(queries: int) -> UserError:
    return UserError(
        f"none of {queries} queries has a positive in the index; look at the columns label and role"
    )


def images_of(part: Part, table: pd.DataFrame) -> Images:
    """The rows of the table, of which those of the part's subset alone are asked and searched."""
    images = Images.of(table)
    return images.within(members(table, part.subset)) if part.subset else images


def groups_of(part: Part, table: pd.DataFrame) -> np.ndarray:
    """Domain or data set of each row, whichever the part averages by."""
    return table[part.by if part.by in table else "domain"].to_numpy()


def report_of(scores: Scores, quirks: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Means over groups and over queries, and each group's own, with counts of queries.

    Returns `mean`, `pooled` and `domains` as `report.json` has them. A group in which no query has a
    positive has None for every metric, and no part in the mean.
    """
    values, common = scores.values, scores.common
    groups = values.groupby(scores.group_Q)
    by_group = groups.mean()
    if "round" in quirks:
        by_group = by_group.round(ROUNDED)
    mean = by_group[common].mean()
    for key in HARMONIC:
        if key in common:
            mean[f"harmonic_{key}"] = metrics.harmonic_mean(by_group[key].dropna())
    without = values[common].isna().all(axis=1).groupby(scores.group_Q).sum()
    each = scores.part.gallery_draws or 1  # every draw asks as many
    return {
        "mean": plain(mean),
        "pooled": plain(values[common].mean()),
        "domains": {
            name: plain(by_group.loc[name, [k for k in values if k in scores.part.keys(name)]])
            | {
                "queries": int(groups.size()[name]) // each,
                "queries_without_positive": int(without[name]) // each,
            }
            for name in by_group.index
        },
        "index": scores.part.index,
    }


def plain(values: pd.Series) -> dict[str, float | None]:
    """Numbers that JSON knows: None for NaN."""
    return {str(key): None if np.isnan(value) else float(value) for key, value in values.items()}
