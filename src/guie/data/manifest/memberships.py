"""Which image is of which class: one row a pair, for labels such as `a|b` are two."""

from __future__ import annotations

import pandas as pd

from guie.data.manifest.columns import one_class_each


def memberships(table: pd.DataFrame) -> pd.DataFrame:
    """Columns row (index in `table`), domain, split and label, a row per image and class."""
    pairs = one_class_each(table[["domain", "split", "label"]])
    return pairs.rename_axis(index="row").reset_index()


def class_sizes(members: pd.DataFrame) -> pd.Series:
    """Images in the class of each row of `memberships`."""
    return members.groupby("label", sort=False)["label"].transform("size")
