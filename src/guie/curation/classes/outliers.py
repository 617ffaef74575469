"""Images that lie with another class than theirs.

Shapes: N members of classes, C classes, D dimensions, K nearest classes.
"""

from __future__ import annotations

import faiss
import numpy as np
import pandas as pd

from guie.config.cleaning import OutlierConfig
from guie.curation.classes.centroids import class_sums, unit
from guie.curation.copies.findings import findings
from guie.data.manifest.memberships import memberships
from guie.evaluation.features import Embed

NORMAL = 1.4826  # standard deviations of a normal distribution in one median absolute deviation
LEAST = 3  # images a class must have for one to be far from the others


def find_outliers(table: pd.DataFrame, config: OutlierConfig, embed: Embed) -> pd.DataFrame:
    """Training images that lie with another class rather than with their own, the farthest first.

    The distance is by how much the cosine to the nearest other class is above that to the own one:
    the simplified silhouette, not normalised (Rousseeuw, Silhouettes, 1987). A rare view of an
    object is far from its class too, but it is as far from all others. Centroids are of the *other*
    images of a class, for a small class follows its outlier. The robust z of the distance is
    (distance - median) / (1.4826 MAD) over the domain. An image of several labels is judged in the
    class it is nearest to.

    Returns:
        Findings; `other_path` is the most typical image of the class, `similarity` the cosine to it.
    """
    members = memberships(table[table["split"] == "train"])
    members = members[members.groupby("label")["label"].transform("size") >= LEAST]
    if members.empty:
        return findings([])
    members = members.assign(image_path=table["image_path"].reindex(members["row"]).to_numpy())
    members = members.reset_index(drop=True)
    features_ND = np.asarray(embed(members["image_path"].to_numpy(), "whole"), np.float32)
    members["similarity"], other = class_cosines(members, features_ND)
    members["distance"] = other - members["similarity"]
    typical = members.loc[members.groupby("label")["similarity"].idxmax()]
    members["z"] = members.groupby("domain")["distance"].transform(robust_z)
    nearest = members.sort_values(["distance", "label"]).drop_duplicates("row")
    ranked = nearest.sort_values(["label", "z", "image_path"], ascending=[True, False, True])
    by_class = ranked.groupby("label")
    allowed = np.floor(config.share_max * by_class["label"].transform("size"))
    far = ranked[(ranked["z"] > config.z_max) & (by_class.cumcount() < allowed)]
    return far.assign(
        kind="outlier",
        other_path=far["label"].map(typical.set_index("label")["image_path"]),
        other_label=far["label"],
        other_split="train",
        action="dropped" if config.action == "drop" else "reported",
    ).reset_index(drop=True)


def robust_z(values: pd.Series) -> pd.Series:
    """How many robust standard deviations above the median; 0 where more than half are equal."""
    above = values - values.median()
    spread = NORMAL * above.abs().median()
    return above / spread if spread > 0 else above * 0.0


def class_cosines(members: pd.DataFrame, features_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) cosines of each member to the others of its class, and to the nearest class not its own.

    Where there is no other class, that is -1.
    """
    codes_N, names = pd.factorize(members["label"])
    sums_CD = class_sums(codes_N, len(names), features_ND)
    own_ND = sums_CD[codes_N] - features_ND
    own_N = np.einsum("nd,nd->n", unit(own_ND), features_ND)
    labels_of_row = members.groupby("row")["label"].transform("size").max()
    count = min(int(labels_of_row) + 1, len(names))
    centroid_CD = unit(sums_CD).astype(np.float32)
    cosine_NK, class_NK = faiss.knn(
        features_ND, centroid_CD, count, metric=faiss.METRIC_INNER_PRODUCT
    )
    rows_N = pd.factorize(members["row"])[0]
    own = np.unique(rows_N * len(names) + codes_N)  # of every class that the image is in
    cosine_NK[np.isin(rows_N[:, None] * len(names) + class_NK, own)] = -np.inf
    other_N = cosine_NK.max(axis=1)
    return own_N, np.maximum(other_N, -1.0)
