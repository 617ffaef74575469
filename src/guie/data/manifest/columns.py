"""The columns of a manifest, what may stand in them, and the class memberships that labels such as `a|b`
name.
"""

from __future__ import annotations

import pandas as pd

REQUIRED = ("image_path", "label", "domain", "split", "role")
OPTIONAL = ("dataset", "caption", "width", "height", "sha256", "label_source", "weight")
ROLES = {
    "train": ("train",),
    "val": ("query", "index", "both"),
    "test": ("query", "index", "both"),
}

Fault = tuple[int, str]  # where (the line of a CSV, the row of a Parquet file), and what


def one_class_each(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows`, but a row of several labels (`a|b`) once for each, under its own index."""
    if not rows["label"].str.contains("|", regex=False).any():
        return rows  # most manifests: nothing to take apart, however many rows
    return rows.assign(label=rows["label"].str.split("|")).explode("label")


def memberships(table: pd.DataFrame) -> pd.DataFrame:
    """Columns row (index in `table`), domain, split and label, a row per image and class."""
    pairs = one_class_each(table[["domain", "split", "label"]])
    return pairs.rename_axis(index="row").reset_index()


def class_sizes(members: pd.DataFrame) -> pd.Series:
    """Images in the class of each row of `memberships`."""
    return members.groupby("label", sort=False)["label"].transform("size")
