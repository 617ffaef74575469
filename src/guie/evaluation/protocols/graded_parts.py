"""Graded relevance: the file of grades, and what each query scores by it (Revisited Oxford, Paris).

Shape legend: T rows of the table, Q queries, I index images, K ranks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.manifest.companions import line_of, read_companion
from guie.evaluation import graded
from guie.evaluation.neighbours import ExactIndex
from guie.evaluation.searching import Embedded, Images, Search

CODES = {"easy": graded.EASY, "hard": graded.HARD, "junk": graded.JUNK}
BLOCK_QUERIES = 16  # whose whole rankings are held


def read_grades(path: Path) -> pd.DataFrame:
    """query and image (paths as in the manifest) and grade, a row a graded pair.

    Raises UserError that names the file and its first bad row.
    """
    grades = read_companion(path, "relevance")
    bad = np.flatnonzero(~grades["grade"].isin(CODES))
    if len(bad):
        word = grades["grade"][bad[0]]
        known = ", ".join(CODES)
        raise UserError(f"{path}:{line_of(bad[0])}: grade {word!r}; known: {known}")
    again = np.flatnonzero(grades.duplicated(["query", "image"]))
    if len(again):
        raise UserError(f"{path}:{line_of(again[0])}: this pair is graded already; delete one")
    return grades


def graded_scores(
    images: Images, table: pd.DataFrame, embedded: Embedded, search: Search, grades: pd.DataFrame
) -> pd.DataFrame:
    """AP and precisions of each query at every level, by its row T; NaN where it has no positive."""
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
        # The query's own image, which is no part of the ranking, stands last as -1: junk to all.
        grade_BK = np.where(
            rank_BK >= 0, np.take_along_axis(grade_BI, rank_BK, axis=1), graded.JUNK
        )
        parts.append(pd.DataFrame(graded.revisited(grade_BK), index=rows_B))
    return pd.concat(parts)


def _grades_of(queries: pd.Series, index_of: pd.Series, grades: pd.DataFrame) -> np.ndarray:
    """Codes [B, I]; what is not graded is negative."""
    codes_BI = np.full((len(queries), len(index_of)), graded.NEGATIVE, np.int8)
    known = grades[grades["query"].isin(queries) & grades["image"].isin(index_of.index)]
    places = pd.Index(queries).get_indexer(known["query"])
    codes_BI[places, index_of[known["image"]].to_numpy()] = known["grade"].map(CODES).to_numpy()
    return codes_BI


def _one(embedded: Embedded, images: Images, rows_B: np.ndarray) -> np.ndarray:
    """The embeddings that these queries are searched by: all of one domain, where they are many."""
    return embedded if isinstance(embedded, np.ndarray) else embedded[images.domain_T[rows_B[0]]]
