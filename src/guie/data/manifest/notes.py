"""What is legal in a manifest but seldom meant: told, not refused."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from guie.data.manifest.columns import Fault, one_class_each


def notes(table: pd.DataFrame) -> Iterator[list[Fault]]:
    """(row, what) of rows that somebody should look at; a list for each kind of note."""
    for split in ("val", "test"):
        alone = queries_without_positive(table[table["split"] == split])
        yield [
            (row, f"{split} query without a positive in the index; metrics leave it out")
            for row in alone.index[alone]
        ]
    yield list(_foreign_prefixes(table))


def queries_without_positive(rows: pd.DataFrame) -> pd.Series:
    """Boolean per query row of one split: nothing else in the index shares a label with it."""
    rows = rows[["image_path", "label", "role"]]
    queries = rows[rows["role"].isin(("query", "both"))]
    index = one_class_each(rows[rows["role"].isin(("index", "both"))])
    index = index[["label", "image_path"]].drop_duplicates()
    images = index["label"].value_counts().to_dict()
    asked = one_class_each(queries).rename_axis(index="row").reset_index()
    itself = asked.merge(index, "left", on=["label", "image_path"], indicator="itself")["itself"]
    others = asked["label"].map(images).fillna(0).astype(int) - (itself == "both").astype(int)
    positive = (others > 0).groupby(asked["row"]).any()
    return ~positive.reindex(queries.index).astype(bool)


def _foreign_prefixes(table: pd.DataFrame) -> Iterator[Fault]:
    """(row, what) for labels `x/class` in another domain than x; `domain/class` is the convention."""
    labels = table[["label", "domain"]].drop_duplicates()
    classes = one_class_each(labels)
    prefix = classes["label"].str.partition("/")[0]
    odd = classes[classes["label"].str.contains("/", regex=False) & (prefix != classes["domain"])]
    if odd.empty:
        return
    strange = labels.loc[odd.index.unique()]
    rows = table.reset_index(names="row").merge(strange, on=["label", "domain"])
    for row, label, domain in zip(rows["row"], rows["label"], rows["domain"], strict=True):
        yield row, f"label {label!r} in domain {domain!r}; by convention a label is domain/class"
