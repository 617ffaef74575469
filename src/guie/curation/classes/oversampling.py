"""Small classes are seen more often: the manifest's `weight` column."""

from __future__ import annotations

import pandas as pd

from guie.config.cleaning import OversampleConfig
from guie.data.manifest.memberships import class_sizes, memberships


def oversample(table: pd.DataFrame, config: OversampleConfig) -> pd.DataFrame:
    """Multiply each training image's weight by clip((target / n) ** power, 1, limit).

    n is the number of training images of its class; an image of several labels goes by the rarest.
    With power 1 a class of fewer than `target` images is drawn as if it had `target` (the 2nd place
    of the challenge repeated images up to 20 a class); smaller powers go part of the way.
    `table` is indexed from 0.
    """
    members = memberships(table[table["split"] == "train"])
    images = class_sizes(members)
    factor = ((config.target / images) ** config.power).clip(1.0, config.limit)
    by_row = factor.groupby(members["row"]).max().reindex(table.index).fillna(1.0)
    old = table["weight"] if "weight" in table else 1.0
    return table.assign(weight=old * by_row)
