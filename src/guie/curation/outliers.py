"""Images that are far from their class. Shapes: N members of classes, C classes, D dimensions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from guie.config.cleaning import OutlierConfig
from guie.curation.centroids import class_sums, unit
from guie.curation.findings import findings
from guie.curation.links import Embed
from guie.curation.memberships import memberships

NORMAL = 1.4826  # standard deviations of a normal distribution in one median absolute deviation
LEAST = 3  # images a class must have for one to be far from the others


def find_outliers(table: pd.DataFrame, config: OutlierConfig, embed: Embed) -> pd.DataFrame:
    """Training images too far from the centroid of their class, the farthest of a class first.

    The distance is 1 - cosine to the centroid of the *other* images of the class, for a small class
    follows its outlier. Its robust z is (distance - median) / (1.4826 MAD) over the domain. An
    image of several labels is judged in the class it is nearest to.

    Returns:
        Findings; `other_path` is the most typical image of the class.
    """
    members = memberships(table[table["split"] == "train"])
    members = members[members.groupby("label")["label"].transform("size") >= LEAST]
    if members.empty:
        return findings([])
    members = members.assign(image_path=table["image_path"].reindex(members["row"]).to_numpy())
    members = members.reset_index(drop=True)
    members["distance"] = _distances(members, embed(members["image_path"].to_numpy(), "whole"))
    typical = members.loc[members.groupby("label")["distance"].idxmin()]
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
        similarity=1 - far["distance"],
        action="dropped" if config.action == "drop" else "reported",
    ).reset_index(drop=True)


def robust_z(values: pd.Series) -> pd.Series:
    """How many robust standard deviations above the median; 0 where more than half are equal."""
    above = values - values.median()
    spread = NORMAL * above.abs().median()
    return above / spread if spread > 0 else above * 0.0


def _distances(members: pd.DataFrame, features_ND: np.ndarray) -> np.ndarray:
    """(N,) 1 - cosine of each member to the centroid of the others of its class."""
    codes_N, names = pd.factorize(members["label"])
    features_ND = np.asarray(features_ND, np.float32)
    others_ND = class_sums(codes_N, len(names), features_ND)[codes_N] - features_ND
    return 1 - np.einsum("nd,nd->n", unit(others_ND), features_ND)
