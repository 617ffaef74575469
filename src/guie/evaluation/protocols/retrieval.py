"""Score the queries of a protocol part: retrieval, grades, recognition, clustering, given rankings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.manifest.companions import line_of, read_companion
from guie.evaluation import graded, metrics, recognition
from guie.evaluation.graded import Rankings, map_at_1k, recall_at_1k
from guie.evaluation.knn import ExactIndex, block_size
from guie.evaluation.protocols.base import Part, members
from guie.evaluation.recognition import nmi
from guie.evaluation.search import (
    BlockCache,
    Embedded,
    Images,
    Search,
    Searcher,
    galleries,
    searches,
)


def cluster_scores(
    part: Part, table: pd.DataFrame, embedded: Embedded
) -> dict[str, dict[str, float]]:
    """Return NMI of each group's images, queries and index together; an image with two rows counts once."""
    column = part.by if part.by in table else "domain"
    found = {}
    for name, rows in table.groupby(column, sort=False):
        rows = rows.drop_duplicates("image_path")
        unit_TD = embedded if isinstance(embedded, np.ndarray) else embedded[rows["domain"].iloc[0]]
        labels = pd.factorize(rows["label"])[0]
        found[str(name)] = {"nmi": nmi(unit_TD[rows.index.to_numpy()], labels)}
    return found


# Functions of rankings, positives and scores; equal scores are one step of ILIAS's AP.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "map_at_1000": map_at_1k,
    "found_at_1000": lambda relevant_QK, positives_Q, _: recall_at_1k(relevant_QK, positives_Q),
}


def ranked_scores(part: Part, table: pd.DataFrame, rankings: Rankings) -> Scores:
    """Score each query of given rankings. Raises UserError for a part that needs embeddings."""
    if part.index != "merged" or not set(part.metrics) <= set(METRICS):
        raise UserError("--results: only --protocol ilias scores rankings")
    images, query_Q = Images.of(table), rankings.query_Q
    positives_Q = images.count_positives(query_Q, np.flatnonzero(images.is_index_T))
    relevant_QK = images.labels.shared(query_Q, rankings.found_QK) & (rankings.found_QK >= 0)
    found = {key: METRICS[key](relevant_QK, positives_Q, rankings.score_QK) for key in part.metrics}
    values = pd.DataFrame(found, index=query_Q)
    cluster_Q, path_Q = (table[c].to_numpy()[query_Q] for c in ("label", "image_path"))
    return Scores(part, values, groups_of(part, table)[query_Q], cluster_Q, path_Q)


def recognition_scores(images: Images, embedded: Embedded, search: Search) -> dict[str, float]:
    """Score nearest-neighbour recognition by similarity; queries without a positive are distractors."""
    rows_Q = search.query_Q
    domains = pd.unique(images.domain_T[rows_Q])
    correct_Q, confidence_Q = np.zeros(len(rows_Q), bool), np.full(len(rows_Q), -np.inf)
    for domain in domains:
        own_Q = np.flatnonzero(images.domain_T[rows_Q] == domain)
        unit_TD = embedded if isinstance(embedded, np.ndarray) else embedded[domain]
        index = ExactIndex(unit_TD[search.index_I])
        for block in np.array_split(own_Q, -(-len(own_Q) // block_size(2, 4096))):
            own = images.same_image(rows_Q[block], search.index_I)
            found_B1, similarity_B1 = index.search(unit_TD[rows_Q[block]], 1, own)
            shared_B1 = images.labels.shared(rows_Q[block], search.index_I[found_B1])
            _, confidence_Q[block] = recognition.classify(similarity_B1, found_B1)
            correct_Q[block] = (shared_B1 & (found_B1 >= 0))[:, 0]
    answered_Q = images.count_positives(rows_Q, search.index_I) > 0
    return {
        "gap": recognition.gap(confidence_Q, correct_Q, answered_Q),
        "gap_minus": recognition.gap_minus(confidence_Q, correct_Q, answered_Q),
        "accuracy": recognition.accuracy(correct_Q, answered_Q),
    }


CODES = {"easy": graded.EASY, "hard": graded.HARD, "junk": graded.JUNK}
BLOCK_QUERIES = 16  # queries whose whole rankings are in memory at once


def read_grades(path: Path) -> pd.DataFrame:
    """Read query and image (paths as in the manifest) and grade, one row per graded pair.

    Raises UserError that names the file and its first bad row.
    """
    grades = read_companion(path, "relevance")
    bad = np.flatnonzero(~grades["grade"].isin(CODES))
    if len(bad):
        word = grades["grade"][bad[0]]
        known = ", ".join(CODES)
        raise UserError(f"{path}:{line_of(bad[0])}: unknown grade {word!r}; known: {known}")
    again = np.flatnonzero(grades.duplicated(["query", "image"]))
    if len(again):
        raise UserError(f"{path}:{line_of(again[0])}: this pair is already graded; delete one row")
    return grades


def graded_scores(
    images: Images, table: pd.DataFrame, embedded: Embedded, search: Search, grades: pd.DataFrame
) -> pd.DataFrame:
    """Return AP and precisions of each query at every level, by row T; NaN if it has no positive."""
    index_of = pd.Series(np.arange(len(search.index_I)), table["image_path"][search.index_I])
    parts = []
    for start in range(0, len(search.query_Q), BLOCK_QUERIES):
        rows_B = search.query_Q[start : start + BLOCK_QUERIES]
        grade_BI = _grades_of(table["image_path"][rows_B], index_of, grades)
        unit_TD = _one(embedded, images, rows_B)
        own = images.same_image(rows_B, search.index_I)
        rank_BK, _ = ExactIndex(unit_TD[search.index_I]).search(
            unit_TD[rows_B], len(search.index_I), own
        )
        # The query's own image is not in the ranking; it comes last as -1 and counts as junk.
        grade_BK = np.where(
            rank_BK >= 0, np.take_along_axis(grade_BI, rank_BK, axis=1), graded.JUNK
        )
        parts.append(pd.DataFrame(graded.revisited(grade_BK), index=rows_B))
    return pd.concat(parts)


def _grades_of(queries: pd.Series, index_of: pd.Series, grades: pd.DataFrame) -> np.ndarray:
    """Return grade codes [B, I]; ungraded images are negative."""
    codes_BI = np.full((len(queries), len(index_of)), graded.NEGATIVE, np.int8)
    known = grades[grades["query"].isin(queries) & grades["image"].isin(index_of.index)]
    places = pd.Index(queries).get_indexer(known["query"])
    codes_BI[places, index_of[known["image"]].to_numpy()] = known["grade"].map(CODES).to_numpy()
    return codes_BI


def _one(embedded: Embedded, images: Images, rows_B: np.ndarray) -> np.ndarray:
    """Return the embeddings for these queries; with specialists, all are from one domain."""
    return embedded if isinstance(embedded, np.ndarray) else embedded[images.domain_T[rows_B[0]]]


HARMONIC = ("r_at_1", "map_at_r", "r_precision")
ROUNDED = 3  # decimals, for the quirk `round`


@dataclass(frozen=True)
class Options:
    """Options for running any protocol.

    Attributes:
        quirks: the keys of `QUIRKS` that are on.
        draws: number of bootstrap draws; 0 for no intervals.
        kept: blocks of an earlier run and of this process.
        grades: result of `read_grades`, required by graded parts.
    """

    quirks: frozenset[str] = frozenset()
    draws: int = 0
    kept: BlockCache | None = None
    grades: pd.DataFrame | None = None

    def within(self, name: str) -> Options:
        """Return the options for one part, whose blocks are cached separately."""
        return replace(self, kept=self.kept and self.kept.within(name))


PLAIN = Options()


@dataclass(frozen=True)
class Scores:
    """The scores of each query.

    Attributes:
        values: one row per query (and per gallery draw), indexed by row T. NaN if the query has no
            positive, and for metrics that its group does not have.
        group_Q: its domain or data set. `cluster_Q`: its class.
    """

    part: Part
    values: pd.DataFrame
    group_Q: np.ndarray
    cluster_Q: np.ndarray
    path_Q: np.ndarray

    @property
    def common(self) -> list[str]:
        """Return the metrics that every group has."""
        sets = [set(self.part.keys(group)) for group in pd.unique(self.group_Q)]
        return [key for key in self.values.columns if all(key in keys for keys in sets)]


def search_part(
    part: Part,
    table: pd.DataFrame,
    embedded: Embedded,
    options: Options = PLAIN,
) -> list[pd.DataFrame]:
    """Return the query scores of each search of a part; see `guie.evaluation.search.Searcher`.

    Args:
        table: rows T of one split: image_path, label, domain, role and, optionally, dataset.
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
    """Run the searches of a part; arguments are those of `search_part`.

    Raises UserError if no query has a positive.
    """
    searched = search_part(part, table, embedded, options)
    found = [scores for scores in searched if len(scores)]
    if all(scores.isna().to_numpy().all() for scores in found):
        if part.graded:
            raise UserError(
                f"relevance.csv: none of {sum(map(len, found))} queries has an easy or hard image in the"
                " index; its paths must match image_path in the manifest"
            )
        raise _unanswerable(sum(map(len, found)))
    values = pd.concat(found)
    rows = values.index.to_numpy()
    group_Q = groups_of(part, table)[rows]
    for group in pd.unique(group_Q):  # in one index all groups got the same metrics
        others = [key for key in values if key not in part.keys(group)]
        values.loc[group_Q == group, others] = np.nan
    cluster_Q, path_Q = (table[c].to_numpy()[rows] for c in ("label", "image_path"))
    return Scores(part, values, group_Q, cluster_Q, path_Q)


def refuse_unanswerable(part: Part, table: pd.DataFrame) -> None:
    """Raise UserError like `retrieve`, without embeddings, for a part that uses labels and roles."""
    images = images_of(part, table)
    asked = list(searches(part.index, images, groups_of(part, table)))
    if not any(images.count_positives(one.query_Q, one.index_I).any() for one in asked):
        raise _unanswerable(sum(len(one.query_Q) for one in asked))


def _unanswerable(queries: int) -> UserError:
    return UserError(
        f"none of {queries} queries has a positive in the index; check the columns label and role"
    )


def images_of(part: Part, table: pd.DataFrame) -> Images:
    """Return the rows of the table, with queries and index restricted to the part's subset."""
    images = Images.of(table)
    return images.within(members(table, part.subset)) if part.subset else images


def groups_of(part: Part, table: pd.DataFrame) -> np.ndarray:
    """Return the domain or data set of each row, whichever the part averages by."""
    return table[part.by if part.by in table else "domain"].to_numpy()


def report_of(scores: Scores, quirks: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return means over groups and over queries, and each group's means with counts of queries.

    Returns `mean`, `pooled` and `domains` in the format of `report.json`. A group without any
    positive has None for every metric and is left out of the mean.
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
    each = scores.part.gallery_draws or 1  # every draw has the same number of queries
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
    """Convert to JSON numbers: None for NaN."""
    return {str(key): None if np.isnan(value) else float(value) for key, value in values.items()}
