"""The columns of a manifest, and what may stand in them."""

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
