"""How hard each class is."""

from __future__ import annotations

import pandas as pd

from guie.evaluation.diagnosis.confusion import class_confusions
from guie.evaluation.diagnosis.nearest import Nearest


def by_class(near: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Each class that is asked, the hardest first; of equally hard ones the larger.

    Returns columns `label`, `domain`, `queries`, `positives` (mean of its queries), `r_at_1`,
    `rank` (median of the first right answer, NaN where half of the queries have none in reach),
    `taken_for`: the class that most of its wrong first answers are of, and their number `times`;
    "" and 0 where all are right. An image of two labels is of a class of its own.
    """
    rank_Q = pd.Series(near.first_hit_Q, dtype=float)
    asked = pd.DataFrame(
        {
            "label": table["label"].to_numpy()[near.query_Q],
            "domain": table["domain"].to_numpy()[near.query_Q],
            "positives": near.positives_Q,
            "right": near.right_Q,
            "rank": rank_Q.where(rank_Q > 0, float("inf")),
        }
    )
    classes = asked.groupby("label", sort=True).agg(
        domain=("domain", "first"),
        queries=("right", "size"),
        positives=("positives", "mean"),
        r_at_1=("right", "mean"),
        rank=("rank", "median"),
    )
    classes["rank"] = classes["rank"].where(classes["rank"] < float("inf"))
    most = class_confusions(near, table).drop_duplicates("asked").set_index("asked")
    classes["taken_for"] = most["answered"].reindex(classes.index).fillna("")
    classes["times"] = most["queries"].reindex(classes.index).fillna(0).astype(int)
    found = classes.reset_index()
    return found.sort_values(
        ["r_at_1", "queries"], ascending=[True, False], kind="stable", ignore_index=True
    )
