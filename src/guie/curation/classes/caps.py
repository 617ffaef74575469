"""Which images of a large class are kept: the first, or the most diverse. Only train rows count.

A random choice is `filters.cap_large`. Tables are indexed from 0, going in and coming out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from guie.curation.classes.centroids import unit
from guie.curation.classes.filters import without
from guie.data.manifest.memberships import memberships
from guie.evaluation.features import Embed


def cap_first(table: pd.DataFrame, max_images: int) -> pd.DataFrame:
    """Keep the first `max_images` by path of each train class that has more."""
    large = _large(table, max_images)
    surplus = large[large.groupby("label").cumcount() >= max_images]
    return without(table, _members(table), surplus)


def cap_diverse(table: pd.DataFrame, max_images: int, embed: Embed) -> pd.DataFrame:
    """Keep the `max_images` of each larger train class that cover it best in feature space.

    An image of several labels stays if one of its classes keeps it.
    """
    large = _large(table, max_images)
    surplus = []
    for _, members in large.groupby("label"):
        features_ND = np.asarray(embed(members["image_path"].to_numpy(), "whole"), np.float32)
        chosen = farthest_points(features_ND, max_images)
        surplus.append(members.drop(index=members.index[chosen]))
    return without(table, _members(table), pd.concat(surplus)) if surplus else table


def farthest_points(features_ND: np.ndarray, count: int) -> np.ndarray:
    """Rows that cover all others: each next one is the farthest from those chosen before.

    The greedy 2-approximation of the k-centre problem of Gonzalez, Clustering to minimize the
    maximum intercluster distance (1985), from the row nearest to the centroid on. Of rows that are
    equally far the first is taken.

    Args:
        features_ND: (N, D) float32 of unit length.
        count: how many to choose, at most N.

    Returns:
        (count,) row numbers in the order chosen.
    """
    centroid_D = unit(features_ND.mean(axis=0, keepdims=True))[0]
    chosen = [int(np.argmax(features_ND @ centroid_D))]
    # Of unit vectors the least similar is the farthest.
    nearest_N = features_ND @ features_ND[chosen[0]]
    while len(chosen) < count:
        nearest_N[chosen[-1]] = np.inf  # a copy of a chosen row may be chosen, the row itself not
        chosen.append(int(np.argmin(nearest_N)))
        nearest_N = np.maximum(nearest_N, features_ND @ features_ND[chosen[-1]])
    return np.array(chosen)


def _large(table: pd.DataFrame, max_images: int) -> pd.DataFrame:
    """Memberships in classes above the cap, by label and path."""
    members = _members(table)
    large = members[members.groupby("label")["label"].transform("size") > max_images]
    paths = table["image_path"].reindex(large["row"]).to_numpy()
    return large.assign(image_path=paths).sort_values(["label", "image_path"])


def _members(table: pd.DataFrame) -> pd.DataFrame:
    return memberships(table[table["split"] == "train"])
