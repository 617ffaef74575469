"""Two models on the same queries: who is right where."""

from __future__ import annotations

import pandas as pd

from guie.evaluation.diagnosis.nearest import Nearest

KINDS = ("both", "ours", "theirs", "neither")


def outcomes(ours: Nearest, theirs: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Of each domain's queries, how many have a right first answer by both models, one, or neither.

    Returns a row a domain, columns KINDS, counts; domains sorted. Raises ValueError where the
    queries are not the same.
    """
    if list(ours.query_Q) != list(theirs.query_Q):
        raise ValueError("the two models were not asked the same queries")
    kind = pd.Series("neither", index=range(len(ours.query_Q)))
    kind[ours.right_Q & theirs.right_Q] = "both"
    kind[ours.right_Q & ~theirs.right_Q] = "ours"
    kind[~ours.right_Q & theirs.right_Q] = "theirs"
    domain = table["domain"].to_numpy()[ours.query_Q]
    counts = pd.crosstab(domain, kind.to_numpy()).rename_axis(index=None, columns=None)
    return counts.reindex(columns=list(KINDS), fill_value=0)
