"""From the tables of several sources to one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from guie.base.errors import UserError


def prefix_of(source: Path, root: Path) -> str:
    """What turns a path relative to `source` into one relative to `root`: "toy/", or "".

    Links are not resolved: a dataset linked into the root counts as lying in it.
    Raises UserError if the source lies outside of the root.
    """
    inside, outside = os.path.abspath(root), os.path.abspath(source)
    common = os.path.commonpath([inside, outside])
    if common != inside:
        raise UserError(
            f"{source}: lies outside of the mix's root {root}; set root to a folder that holds"
            f" every source, for example root: {common}"
        )
    return "" if inside == outside else Path(outside).relative_to(inside).as_posix() + "/"


def combine(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table, in the order of the sources, indexed from 0.

    A column that only some sources have is empty for the others; a missing weight is 1.
    Raises UserError if an image comes from two sources.
    """
    seen: dict[str, int] = {}
    for number, table in enumerate(tables):
        for path in table["image_path"].unique():
            if seen.setdefault(path, number) != number:
                raise UserError(
                    f"sources {seen[path]} and {number} both bring {path}; drop one of them"
                )
    table = pd.concat(tables, ignore_index=True)
    if "weight" in table:
        table["weight"] = table["weight"].fillna(1.0)
    for column in {"width", "height"} & set(table.columns):
        table[column] = pd.to_numeric(table[column], errors="coerce").astype("Int64")
    text = table.columns.difference(["weight", "width", "height"])
    table[text] = table[text].fillna("")
    return table
