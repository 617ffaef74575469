"""Classes in feature space: images far from their class, and classes that may be one.

Only train rows count. Shapes: N images, C classes, D dimensions, K neighbours.
"""

import faiss
import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from guie.config.data import OutlierConfig
from guie.curation.classes import train_members
from guie.curation.features import Embed, unit
from guie.curation.findings import findings
from guie.data.manifest.reading import class_sizes
from guie.evaluation.knn import search_threads
from guie.rows.store import Rows

CHUNK = 65_536  # images whose features are summed at once
NORMAL = 1.4826  # standard deviations of a normal distribution in one median absolute deviation
LEAST = 3  # images that a class needs for outlier detection
MERGES = [  # columns of suggested merges
    *("label", "into", "similarity", "dataset", "into_dataset", "images", "into_images"),
    *("image_path", "into_path"),
]


def class_sums(codes_N: np.ndarray, classes: int, features_ND: np.ndarray | Rows) -> np.ndarray:
    """Sum the features of each class: float64 [C, D]; row c is the class with code c."""
    sums_CD = np.zeros((classes, features_ND.shape[1]))
    for start in range(0, len(codes_N), CHUNK):
        chunk_ND = np.asarray(features_ND[start : start + CHUNK], np.float64)
        rows, count = codes_N[start : start + CHUNK], len(chunk_ND)
        member_CN = csr_matrix((np.ones(count), (rows, np.arange(count))), (classes, count))
        sums_CD += member_CN @ chunk_ND
    return sums_CD


def find_outliers(table: pd.DataFrame, config: OutlierConfig, embed: Embed) -> pd.DataFrame:
    """Find training images that are nearer to another class than to their own, farthest first.

    The distance is the cosine to the nearest other class minus the cosine to the own class: the
    simplified silhouette, not normalised (Rousseeuw, Silhouettes, 1987). A rare view of an object
    is far from its class too, but equally far from all others. The own centroid uses only the
    *other* images of the class, because an outlier shifts the centroid of a small class. The
    robust z of the distance is (distance - median) / (1.4826 MAD) over the domain. An image with
    several labels is compared with the class that it is nearest to. In the findings, `other_path` is the most
    typical image of the class, and `similarity` the cosine to the class.
    """
    members = train_members(table)
    members = members[class_sizes(members) >= LEAST].reset_index(drop=True)
    if members.empty:
        return findings([])
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
    """Return robust standard deviations above the median; 0 if more than half are equal."""
    above = values - values.median()
    spread = NORMAL * above.abs().median()
    return above / spread if spread > 0 else above * 0.0


def class_cosines(members: pd.DataFrame, features_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (N,) cosines of each member to the rest of its class, and to the nearest other (or else -1)."""
    codes_N, names = pd.factorize(members["label"])
    sums_CD = class_sums(codes_N, len(names), features_ND)
    own_N = np.einsum("nd,nd->n", unit(sums_CD[codes_N] - features_ND), features_ND)
    labels_of_row = members.groupby("row")["label"].transform("size").max()
    count = min(int(labels_of_row) + 1, len(names))
    cosine_NK, class_NK = _nearest(features_ND, unit(sums_CD).astype(np.float32), count)
    rows_N = pd.factorize(members["row"])[0]
    own = np.unique(rows_N * len(names) + codes_N)  # every class of the image
    cosine_NK[np.isin(rows_N[:, None] * len(names) + class_NK, own)] = -np.inf
    return own_N, np.maximum(cosine_NK.max(axis=1), -1.0)


def suggest_merges(table: pd.DataFrame, similarity_min: float, embed: Embed) -> pd.DataFrame:
    """Find pairs of train classes from two datasets (or else domains) that are each other's nearest class.

    Similarity is the cosine of class centroids. Returns columns MERGES, the most similar pair first; the
    smaller class is to merge into the larger one.
    """
    members = train_members(table)
    dataset = table["dataset"] if "dataset" in table else table["domain"]
    members["dataset"] = dataset.reindex(members["row"]).to_numpy()
    codes, names = pd.factorize(members["label"], sort=True)
    classes = members.groupby(codes).agg(
        label=("label", "first"),
        dataset=("dataset", "first"),
        images=("row", "size"),
        image_path=("image_path", "min"),
    )
    features = embed(members["image_path"].to_numpy(), "whole")
    centroid_CD = unit(class_sums(codes, len(names), features)).astype(np.float32)
    dataset_C = classes["dataset"].to_numpy(object)
    nearest, cosine = np.full(len(names), -1), np.full(len(names), -1.0, np.float32)
    for name in np.unique(dataset_C):
        own, elsewhere = np.flatnonzero(dataset_C == name), np.flatnonzero(dataset_C != name)
        if len(elsewhere):
            similar, place = _nearest(centroid_CD[own], centroid_CD[elsewhere], 1)
            nearest[own], cosine[own] = elsewhere[place[:, 0]], similar[:, 0]
    mutual = (nearest >= 0) & (nearest[nearest] == np.arange(len(names)))
    own = np.flatnonzero(mutual & (cosine >= similarity_min))
    into = nearest[own]
    pairs, others = (classes.iloc[rows].reset_index(drop=True) for rows in (own, into))
    others = others.rename(columns={"image_path": "path"}).add_prefix("into_")
    pairs = pairs.assign(similarity=cosine[own]).join(others)
    # The smaller class merges into the larger; at equal size, the second by name into the first.
    smaller = pairs["images"] < pairs["into_images"]
    later = (pairs["images"] == pairs["into_images"]) & (own > into)
    pairs = pairs[smaller | later].rename(columns={"into_label": "into"})[MERGES]
    return pairs.sort_values(["similarity", "label"], ascending=[False, True], ignore_index=True)


def _nearest(
    queries_ND: np.ndarray, index_MD: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and rows of the nearest, (N, count) each."""
    with search_threads():
        return faiss.knn(queries_ND, index_MD, count, metric=faiss.METRIC_INNER_PRODUCT)
