"""Which image is of which class: one row a pair, for labels such as `a|b` are two."""

from __future__ import annotations

import pandas as pd


def memberships(table: pd.DataFrame) -> pd.DataFrame:
    """Columns row (index in `table`), domain, split and label, a row per image and class."""
    pairs = table[["domain", "split", "label"]].assign(label=table["label"].str.split("|"))
    return pairs.explode("label").rename_axis(index="row").reset_index()
