"""Score graded benchmarks: Revisited Oxford and Paris, by grades of pairs in place of labels.

Shapes: Q queries, B of one block, K ranks, I index images, P positives of a query.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.manifest.companions import read_companion
from guie.evaluation.search import Ranking, Search

NEGATIVE, EASY, HARD, JUNK = range(4)
CODES = {"easy": EASY, "hard": HARD, "junk": JUNK}
# Grades that count as positive; the others but NEGATIVE are removed from the ranking
PROTOCOLS = {"easy": (EASY,), "medium": (EASY, HARD), "hard": (HARD,)}
DEPTHS = (1, 5, 10)
BLOCK_QUERIES = 16  # queries whose whole rankings are in memory at once


def revisited(grade_QK: np.ndarray) -> dict[str, np.ndarray]:
    """Score rankings of the whole index: `easy_ap`, `easy_p_at_5`, `medium_ap` ..., each [Q].

    The means over queries are the benchmark's mAP and mP@k. A query without positives has NaN.
    """
    scores: dict[str, list[float]] = {}
    for grade_K in grade_QK:
        for name, positive in PROTOCOLS.items():
            kept_K = grade_K[np.isin(grade_K, (NEGATIVE, *positive))]
            rank_P = np.flatnonzero(kept_K != NEGATIVE)
            values = {"ap": np.nan, **{f"p_at_{k}": np.nan for k in DEPTHS}}
            if len(rank_P):
                values["ap"] = _trapezoid_ap(rank_P)
                for k in DEPTHS:  # down to the last positive: two in front have precision 1 at 10
                    window = min(k, int(rank_P[-1]) + 1)
                    values[f"p_at_{k}"] = float((rank_P < window).sum() / window)
            for key, value in values.items():
                scores.setdefault(f"{name}_{key}", []).append(value)
    return {key: np.array(values_Q) for key, values_Q in scores.items()}


def _trapezoid_ap(rank_P: np.ndarray) -> float:
    """Return the area below the precision-recall polygon, by the ranks of the positives, from 0.

    Each positive adds the mean of the precision just before it and at it; before rank 0 the precision is 1.
    The result is never above the AP of `metrics`, which adds only the precision at the positive.
    """
    before_P = np.arange(len(rank_P))
    precision_before_P = np.where(rank_P > 0, before_P / np.maximum(rank_P, 1), 1.0)
    precision_at_P = (before_P + 1) / (rank_P + 1)
    return float((precision_before_P + precision_at_P).sum() / 2 / len(rank_P))


def read_grades(path: Path) -> pd.DataFrame:
    """Read query, image (paths as in the manifest) and grade of each pair. Raises UserError for a bad row."""
    grades = read_companion(path, "relevance")
    for line, word in grades["grade"][~grades["grade"].isin(CODES)].items():
        raise UserError(f"{path}:{line}: unknown grade {word!r}; known: {', '.join(CODES)}")
    for line in grades.index[grades.duplicated(["query", "image"])]:
        raise UserError(f"{path}:{line}: this pair is already graded; delete one row")
    return grades


def graded_scores(
    rankings: Iterable[Ranking], table: pd.DataFrame, search: Search, grades: pd.DataFrame
) -> pd.DataFrame:
    """Return `revisited` of each query of a search, by row T; ungraded pairs are negative."""
    index_I, path_T, found = search.index_I, table["image_path"], []
    row_of = pd.Series(index_I, path_T[index_I])
    for ranking in rankings:
        for query_B, row_BI, _ in ranking.blocks(len(index_I), BLOCK_QUERIES):
            queries = pd.Index(path_T[query_B])
            known = grades[grades["query"].isin(queries) & grades["image"].isin(row_of.index)]
            grade_BT = np.full((len(queries), len(table)), NEGATIVE, np.int8)
            places = queries.get_indexer(known["query"]), row_of[known["image"]]
            grade_BT[places] = known["grade"].map(CODES)
            # The query's own image is not in the ranking; it comes last as -1 and counts as junk.
            grade_BI = np.where(row_BI >= 0, np.take_along_axis(grade_BT, row_BI, axis=1), JUNK)
            found.append(pd.DataFrame(revisited(grade_BI), index=query_B))
    return pd.concat(found).loc[search.query_Q]
