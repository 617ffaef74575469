"""Who is taken for whom by the first answer: domains, and classes.

Shape legend: Q queries.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from guie.evaluation.diagnosis.nearest import Nearest


def domain_shares(near: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Of each domain's queries (row), the share whose first answer lies in a domain (column).

    Rows are the domains that ask, each summing to 1; columns those and all that answer, sorted.
    """
    asked, answered = _firsts(near, table["domain"])
    counts = pd.crosstab(asked, answered)
    columns = sorted(set(counts.index) | set(counts.columns))
    counts = counts.reindex(columns=columns, fill_value=0).rename_axis(index=None, columns=None)
    return counts.div(counts.sum(axis=1), axis=0)


def strayed(near: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Queries whose first answer is wrong and of another domain, nearest first.

    Returns columns `place` (in near.query_Q), `asked`, `answered` (domains), `distance`.
    """
    return _wrong(near, table, "domain")


def class_confusions(near: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Pairs of classes of which the one is answered by the other, most often first.

    Returns columns `asked`, `answered` (labels), `queries` and `share` of the class's queries.
    """
    wrong = _wrong(near, table, "label")
    pairs = wrong.groupby(["asked", "answered"]).size().rename("queries").reset_index()
    total = table["label"].iloc[near.query_Q].value_counts()
    pairs["share"] = pairs["queries"] / pairs["asked"].map(total)
    order = ["queries", "share"]
    return pairs.sort_values(order, ascending=False, kind="stable", ignore_index=True)


def _wrong(near: Nearest, table: pd.DataFrame, column: str) -> pd.DataFrame:
    asked_Q, answered_Q = _firsts(near, table[column])
    place = np.flatnonzero(~near.right_Q & (asked_Q != answered_Q) & (near.found_QK[:, 0] >= 0))
    found = pd.DataFrame(
        {
            "place": place,
            "asked": asked_Q[place],
            "answered": answered_Q[place],
            "distance": near.distance_QK[place, 0],
        }
    )
    return found.sort_values("distance", kind="stable", ignore_index=True)


def _firsts(near: Nearest, column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """What stands in a column of each query, and of its first answer."""
    values_T = column.to_numpy()
    return values_T[near.query_Q], values_T[near.found_QK[:, 0]]
