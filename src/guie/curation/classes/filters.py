"""Filters on the number of images a class has. Only train rows are counted and dropped.

Tables are indexed from 0, going in and coming out.
"""

from __future__ import annotations

import pandas as pd

from guie.base.seeds import seeded_draws
from guie.data.manifest.memberships import class_sizes, memberships


def drop_rare(table: pd.DataFrame, min_images: int) -> pd.DataFrame:
    """Drop the train classes with fewer than `min_images` images.

    An image of several labels loses the rare ones, and goes when none is left.
    """
    members = memberships(table[table["split"] == "train"])
    rare = class_sizes(members) < min_images
    kept, lost = members[~rare], members[rare]
    partly = kept[kept["row"].isin(lost["row"])]
    labels = table["label"].copy()
    labels.update(partly.groupby("row")["label"].agg("|".join))
    gone = lost.loc[~lost["row"].isin(kept["row"]), "row"]
    return table.assign(label=labels).drop(index=gone.unique()).reset_index(drop=True)


def cap_large(table: pd.DataFrame, max_images: int, seed: int) -> pd.DataFrame:
    """Keep a random `max_images` of each train class that has more.

    The choice depends on the seed, the label and the image paths of the class alone. An image of
    several labels stays if one of its classes keeps it, so that others may end above the cap.
    """
    members = memberships(table[table["split"] == "train"])
    large = members[class_sizes(members) > max_images]
    names = large["label"] + "/" + table["image_path"].reindex(large["row"]).to_numpy()
    drawn = large.assign(draw=seeded_draws(seed, names)).sort_values("draw")
    surplus = drawn[drawn.groupby("label").cumcount() >= max_images]
    return without(table, members, surplus)


def without(table: pd.DataFrame, members: pd.DataFrame, surplus: pd.DataFrame) -> pd.DataFrame:
    """The table less the rows that all of their classes can spare.

    Args:
        members: the memberships of the train rows.
        surplus: those of them that a cap takes away.
    """
    kept = members.drop(index=surplus.index)
    gone = surplus.loc[~surplus["row"].isin(kept["row"]), "row"]
    return table.drop(index=gone.unique()).reset_index(drop=True)
