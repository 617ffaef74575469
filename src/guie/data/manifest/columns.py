"""The columns of a manifest, their allowed values, and the classes in labels such as `a|b`."""

from __future__ import annotations

import pandas as pd

REQUIRED = ("image_path", "label", "domain", "split", "role")
OPTIONAL = ("dataset", "caption", "width", "height", "sha256", "label_source", "weight")
ROLES = {
    "train": ("train",),
    "val": ("query", "index", "both"),
    "test": ("query", "index", "both"),
}

Fault = tuple[int, str]  # place (line of a CSV, row of a Parquet file), message


def one_class_each(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `rows` with one row per label; a row labelled `a|b` is repeated with the same index."""
    if not rows["label"].str.contains("|", regex=False).any():
        return rows  # the fast path for most manifests
    return rows.assign(label=rows["label"].str.split("|")).explode("label")


def memberships(table: pd.DataFrame) -> pd.DataFrame:
    """Return columns row (index in `table`), domain, split, label: one row per image and class."""
    pairs = one_class_each(table[["domain", "split", "label"]])
    return pairs.rename_axis(index="row").reset_index()


def class_sizes(members: pd.DataFrame) -> pd.Series:
    """Return the number of images in the class of each row of `memberships`."""
    return members.groupby("label", sort=False)["label"].transform("size")
