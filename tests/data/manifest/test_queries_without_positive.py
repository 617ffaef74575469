"""Queries without a positive, against the definition spelt out."""

from __future__ import annotations

import random

import pandas as pd
import pytest

from guie.data.manifest import queries_without_positive


def _alone_slowly(rows: pd.DataFrame) -> list[bool]:
    """Queries that share no label with another image of the index: the definition, spelt out."""
    alone = []
    for query in rows.itertuples():
        if query.role == "index":
            continue
        found = False
        for other in rows.itertuples():
            shares = set(query.label.split("|")) & set(other.label.split("|"))
            if other.role != "query" and other.image_path != query.image_path and shares:
                found = True
        alone.append(not found)
    return alone


@pytest.mark.parametrize("seed", range(5))
def test_queries_without_positive_agrees_with_its_definition(seed):
    draw = random.Random(seed)
    labels = ["a", "b", "c", "d", "a|b", "c|e", "e"]
    rows = pd.DataFrame(
        [
            (f"{n}.jpg", draw.choice(labels), draw.choice(["query", "index", "both"]))
            for n in range(12)
        ],
        columns=["image_path", "label", "role"],
    )
    alone = queries_without_positive(rows)
    assert alone.tolist() == _alone_slowly(rows)
    assert alone.index.tolist() == rows.index[rows["role"] != "index"].tolist()
