"""Classes of several datasets that may be one: suggested, and merged only where accepted.

Shapes: C classes, D dimensions.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import faiss
import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.curation.classes.centroids import class_sums, unit
from guie.data.manifest.memberships import memberships
from guie.evaluation.features import Embed

COLUMNS = [
    *("label", "into", "similarity", "dataset", "into_dataset", "images", "into_images"),
    *("image_path", "into_path"),
]


def suggest_merges(table: pd.DataFrame, similarity_min: float, embed: Embed) -> pd.DataFrame:
    """Pairs of train classes of two datasets, each the other's nearest, by cosine of centroids.

    The dataset is the column of that name, else the domain. The class of fewer images is
    suggested to become part of the other. Nothing is merged.

    Returns:
        The COLUMNS above, the most similar first; image_path and into_path are examples.
    """
    members = memberships(table[table["split"] == "train"]).reset_index(drop=True)
    members["image_path"] = table["image_path"].reindex(members["row"]).to_numpy()
    dataset = table["dataset"] if "dataset" in table else table["domain"]
    members["dataset"] = dataset.reindex(members["row"]).to_numpy()
    codes, names = pd.factorize(members["label"], sort=True)
    classes = members.groupby(codes).agg(
        dataset=("dataset", "first"), images=("row", "size"), image_path=("image_path", "min")
    )
    classes["label"] = names
    features = embed(members["image_path"].to_numpy(), "whole")
    centroid_CD = unit(class_sums(codes, len(names), features)).astype(np.float32)
    nearest, cosine = _nearest_elsewhere(centroid_CD, classes["dataset"].to_numpy(object))
    place = np.arange(len(names))
    mutual = (nearest >= 0) & (nearest[nearest] == place) & (cosine >= similarity_min)
    # The larger takes the smaller; of equals, the first by name the second.
    size, other = classes["images"].to_numpy(), nearest
    smaller = (size < size[other]) | ((size == size[other]) & (place > other))
    pair_rows = np.flatnonzero(mutual & smaller)
    gone = classes.iloc[pair_rows].reset_index(drop=True)
    into = classes.iloc[nearest[pair_rows]].reset_index(drop=True)
    into = into.rename(columns={**{n: f"into_{n}" for n in ("dataset", "images")}, "label": "into"})
    into = into.rename(columns={"image_path": "into_path"})
    pairs = pd.concat([gone, into], axis=1).assign(similarity=cosine[pair_rows])
    return pairs[COLUMNS].sort_values(
        ["similarity", "label"], ascending=[False, True], ignore_index=True
    )


def apply_merges(table: pd.DataFrame, merge: Mapping[str, str]) -> pd.DataFrame:
    """Rename classes; the images of one that is merged move to the domain of the other.

    Raises UserError for a class that the table does not have, or that is merged itself.
    """
    if not merge:
        return table
    members = memberships(table)
    domain_of = members.drop_duplicates("label").set_index("label")["domain"]
    for label, into in merge.items():
        for name in (label, into):
            if name not in domain_of.index:
                near = difflib.get_close_matches(name, domain_of.index, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UserError(f"clean.merge: no class {name!r} in the mix{hint}")
        if into in merge:
            raise UserError(
                f"clean.merge: {label!r} goes into {into!r}, which is merged itself; write"
                f" {label!r}: {merge[into]!r}"
            )
    renamed = members[members["label"].isin(merge)]
    labels = members["label"].replace(dict(merge)).groupby(members["row"])
    label = labels.agg(lambda names: "|".join(dict.fromkeys(names)))
    domain = renamed["label"].map(merge).map(domain_of).set_axis(renamed["row"])
    moved = table.copy()
    moved.loc[renamed["row"], "label"] = label.loc[renamed["row"]]
    moved.loc[renamed["row"], "domain"] = domain[~domain.index.duplicated()]
    return moved


def _nearest_elsewhere(
    centroid_CD: np.ndarray, dataset_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each class the nearest of another dataset (-1: there is none), and the cosine."""
    nearest = np.full(len(dataset_C), -1)
    cosine = np.full(len(dataset_C), -1.0, np.float32)
    for name in np.unique(dataset_C):
        own, elsewhere = np.flatnonzero(dataset_C == name), np.flatnonzero(dataset_C != name)
        if len(elsewhere):
            found, place = faiss.knn(
                centroid_CD[own], centroid_CD[elsewhere], 1, metric=faiss.METRIC_INNER_PRODUCT
            )
            nearest[own], cosine[own] = elsewhere[place[:, 0]], found[:, 0]
    return nearest, cosine
