"""Class curation: size filters, caps, merges, outliers, oversampling, the validation split.

Only train rows count. Shapes: N images, C classes, D dimensions.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

import faiss
import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.config.data import OutlierConfig, OversampleConfig
from guie.curation.duplicates.findings import findings
from guie.curation.features import Embed
from guie.data.manifest.reading import class_names, class_sizes, memberships
from guie.evaluation.knn import search_threads
from guie.rows.store import Rows

CHUNK = 65_536  # images whose features are summed at once
NORMAL = 1.4826  # standard deviations of a normal distribution in one median absolute deviation
LEAST = 3  # images that a class needs for outlier detection


def class_sums(codes_N: np.ndarray, classes: int, features_ND: np.ndarray | Rows) -> np.ndarray:
    """Sum the features of each class: float64 [C, D]; row c is the class with code c."""
    sums_CD = np.zeros((classes, features_ND.shape[1]))
    for start in range(0, len(codes_N), CHUNK):
        chunk_ND = np.asarray(features_ND[start : start + CHUNK], np.float64)
        rows, count = codes_N[start : start + CHUNK], len(chunk_ND)
        member_CN = csr_matrix((np.ones(count), (rows, np.arange(count))), (classes, count))
        sums_CD += member_CN @ chunk_ND
    return sums_CD


def unit(rows_ND: np.ndarray) -> np.ndarray:
    """Scale rows to unit length; a zero row stays zero."""
    length_N1 = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    return rows_ND / np.where(length_N1 > 0, length_N1, 1.0)


def drop_rare(table: pd.DataFrame, min_images: int) -> pd.DataFrame:
    """Drop the train classes with fewer than `min_images` images.

    An image with several labels loses the rare ones; it is dropped when no label remains.
    """
    members = _members(table)
    rare = class_sizes(members) < min_images
    kept, lost = members[~rare], members[rare]
    partly = kept[kept["row"].isin(lost["row"])]
    labels = table["label"].copy()
    labels.update(partly.groupby("row")["label"].agg("|".join))
    return _without(table.assign(label=labels), members, lost.index)


def cap_large(table: pd.DataFrame, max_images: int, seed: int) -> pd.DataFrame:
    """Keep a random `max_images` of each train class that has more.

    The choice depends only on the seed, the label and the image paths of the class. An image with
    several labels stays if one of its classes keeps it, so other classes may exceed the cap.
    """
    members = _members(table)
    large = members[class_sizes(members) > max_images]
    draws = seeded_draws(seed, large["label"] + "/" + large["image_path"])
    drawn = large.assign(draw=draws).sort_values("draw")
    surplus = drawn.index[drawn.groupby("label").cumcount() >= max_images]
    return _without(table, members, surplus)


def cap_first(table: pd.DataFrame, max_images: int) -> pd.DataFrame:
    """Keep the first `max_images`, by path, of each train class that has more."""
    members = _members(table)
    large = members[class_sizes(members) > max_images].sort_values(["label", "image_path"])
    surplus = large.index[large.groupby("label").cumcount() >= max_images]
    return _without(table, members, surplus)


def cap_diverse(table: pd.DataFrame, max_images: int, embed: Embed) -> pd.DataFrame:
    """Keep the `max_images` of each larger train class that cover it best in feature space.

    An image with several labels stays if one of its classes keeps it.
    """
    members = _members(table)
    large = members[class_sizes(members) > max_images].sort_values(["label", "image_path"])
    chosen: list[int] = []
    for _, images in large.groupby("label"):
        features_ND = np.asarray(embed(images["image_path"].to_numpy(), "whole"), np.float32)
        chosen += images.index[farthest_points(features_ND, max_images)].tolist()
    return _without(table, members, large.index.drop(chosen))


def _members(table: pd.DataFrame) -> pd.DataFrame:
    """Return the memberships of the train rows, with their image paths."""
    members = memberships(table[table["split"] == "train"])
    return members.assign(image_path=table["image_path"].reindex(members["row"]).to_numpy())


def _without(table: pd.DataFrame, members: pd.DataFrame, surplus: pd.Index) -> pd.DataFrame:
    """Drop the train rows all of whose `_members` are surplus."""
    kept, lost = members.drop(index=surplus)["row"], members.loc[surplus, "row"]
    return table.drop(index=lost[~lost.isin(kept)].unique()).reset_index(drop=True)


def farthest_points(features_ND: np.ndarray, count: int) -> np.ndarray:
    """Choose rows that cover all others: each is the farthest from those chosen before it.

    This is the greedy 2-approximation of the k-centre problem (Gonzalez, Clustering to minimize
    the maximum intercluster distance, 1985). It starts from the row nearest to the centroid.
    Ties go to the first row.

    Args:
        features_ND: (N, D) float32 of unit length.
        count: how many to choose, at most N.

    Returns:
        (count,) row numbers in the order chosen.
    """
    centroid_D = unit(features_ND.mean(axis=0, keepdims=True))[0]
    chosen = [int(np.argmax(features_ND @ centroid_D))]
    # For unit vectors, the least similar one is the farthest.
    nearest_N = features_ND @ features_ND[chosen[0]]
    while len(chosen) < count:
        nearest_N[chosen[-1]] = np.inf  # not chosen twice, though a copy of it may be
        chosen.append(int(np.argmin(nearest_N)))
        nearest_N = np.maximum(nearest_N, features_ND @ features_ND[chosen[-1]])
    return np.array(chosen)


def suggest_merges(table: pd.DataFrame, similarity_min: float, embed: Embed) -> pd.DataFrame:
    """Find pairs of train classes from two datasets that are each other's nearest class.

    Similarity is the cosine of class centroids. The dataset is the column `dataset`, or else the
    domain. The suggestion merges the smaller class into the larger one; nothing is merged here.

    Returns:
        Label, dataset, number of images and an example of both classes, and their similarity, the most
        similar pair first.
    """
    members = _members(table)
    dataset = table["dataset"] if "dataset" in table else table["domain"]
    members["dataset"] = dataset.reindex(members["row"]).to_numpy()
    codes, names = pd.factorize(members["label"], sort=True)
    classes = members.groupby(codes).agg(
        dataset=("dataset", "first"), images=("row", "size"), image_path=("image_path", "min")
    )
    features = embed(members["image_path"].to_numpy(), "whole")
    centroid_CD = unit(class_sums(codes, len(names), features)).astype(np.float32)
    nearest, cosine = _nearest_elsewhere(centroid_CD, classes["dataset"].to_numpy(object))
    place = np.arange(len(names))
    mutual = (nearest >= 0) & (nearest[nearest] == place) & (cosine >= similarity_min)
    # The smaller class merges into the larger; at equal size, the second by name into the first.
    size, other = classes["images"].to_numpy(), nearest
    smaller = (size < size[other]) | ((size == size[other]) & (place > other))
    found = np.flatnonzero(mutual & smaller)
    gone, into = (classes.iloc[rows].to_dict("list") for rows in (found, nearest[found]))
    pairs = pd.DataFrame(
        {
            "label": names[found],
            "into": names[nearest[found]],
            "similarity": cosine[found],
            "dataset": gone["dataset"],
            "into_dataset": into["dataset"],
            "images": gone["images"],
            "into_images": into["images"],
            "image_path": gone["image_path"],
            "into_path": into["image_path"],
        }
    )
    return pairs.sort_values(["similarity", "label"], ascending=[False, True], ignore_index=True)


def _nearest_elsewhere(
    centroid_CD: np.ndarray, dataset_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each class, return the nearest class of another dataset (-1: none) and the cosine."""
    nearest = np.full(len(dataset_C), -1)
    cosine = np.full(len(dataset_C), -1.0, np.float32)
    for name in np.unique(dataset_C):
        own, elsewhere = np.flatnonzero(dataset_C == name), np.flatnonzero(dataset_C != name)
        if len(elsewhere):
            with search_threads():
                found, place = faiss.knn(
                    centroid_CD[own], centroid_CD[elsewhere], 1, metric=faiss.METRIC_INNER_PRODUCT
                )
            nearest[own], cosine[own] = elsewhere[place[:, 0]], found[:, 0]
    return nearest, cosine


def apply_merges(table: pd.DataFrame, merge: Mapping[str, str]) -> pd.DataFrame:
    """Rename classes; images of a merged class move to the domain of the class they join.

    Raises UserError if the table lacks a class, or if the target class is itself merged.
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
                f"clean.merge: {label!r} is merged into {into!r}, which is itself merged; write"
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


def find_outliers(table: pd.DataFrame, config: OutlierConfig, embed: Embed) -> pd.DataFrame:
    """Find training images that are nearer to another class than to their own, farthest first.

    The distance is the cosine to the nearest other class minus the cosine to the own class: the
    simplified silhouette, not normalised (Rousseeuw, Silhouettes, 1987). A rare view of an object
    is far from its class too, but equally far from all others. The own centroid uses only the
    *other* images of the class, because an outlier shifts the centroid of a small class. The
    robust z of the distance is (distance - median) / (1.4826 MAD) over the domain. An image with
    several labels is compared with the class that it is nearest to.

    Returns:
        Findings; `other_path` is the most typical image of the class, `similarity` the cosine to it.
    """
    members = _members(table)
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
    """Return (N,) cosines of each member to the rest of its class, and to the nearest other class.

    The second cosine is -1 if there is no other class.
    """
    codes_N, names = pd.factorize(members["label"])
    sums_CD = class_sums(codes_N, len(names), features_ND)
    own_ND = sums_CD[codes_N] - features_ND
    own_N = np.einsum("nd,nd->n", unit(own_ND), features_ND)
    labels_of_row = members.groupby("row")["label"].transform("size").max()
    count = min(int(labels_of_row) + 1, len(names))
    centroid_CD = unit(sums_CD).astype(np.float32)
    with search_threads():
        cosine_NK, class_NK = faiss.knn(
            features_ND, centroid_CD, count, metric=faiss.METRIC_INNER_PRODUCT
        )
    rows_N = pd.factorize(members["row"])[0]
    own = np.unique(rows_N * len(names) + codes_N)  # every class of the image
    cosine_NK[np.isin(rows_N[:, None] * len(names) + class_NK, own)] = -np.inf
    other_N = cosine_NK.max(axis=1)
    return own_N, np.maximum(other_N, -1.0)


def oversample(table: pd.DataFrame, config: OversampleConfig) -> pd.DataFrame:
    """Multiply each training image's weight by clip((target / n) ** power, 1, limit).

    n is the number of training images of its class, the rarest one if it has several labels.
    With power 1, a class with fewer than `target` images is drawn as if it had `target` (the 2nd
    place of the challenge repeated images up to 20 a class). Smaller powers oversample less.
    `table` is indexed from 0.
    """
    members = _members(table)
    images = class_sizes(members)
    factor = ((config.target / images) ** config.power).clip(1.0, config.limit)
    by_row = factor.groupby(members["row"]).max().reindex(table.index).fillna(1.0)
    old = table["weight"] if "weight" in table else 1.0
    return table.assign(weight=old * by_row)


def choose_test_classes(
    table: pd.DataFrame,
    fraction: float,
    seed: int,
    leave: Collection[str] = (),
    merge: Mapping[str, str] | None = None,
) -> set[str]:
    """Choose a share of each domain's train classes to test on, as `held_out_classes` does.

    Domains that have a test split, and those in `leave`, keep all their classes in train. So do classes
    of other domains that cleaning will join to one of them.

    Args:
        merge: classes that cleaning will rename; they move with the class that absorbs them.
    """
    leave = {*leave, *table.loc[table["split"] == "test", "domain"]}
    renamed = apply_merges(table, merge or {})
    left = table["domain"].isin(leave) | renamed["domain"].isin(leave)
    train = renamed["split"] == "train"
    stay = set(memberships(renamed[train & left])["label"])
    return class_names(table.loc[_held_out(renamed[train & ~left], fraction, seed, stay), "label"])


def move_to_test(table: pd.DataFrame, classes: Collection[str]) -> pd.DataFrame:
    """Move the train images of these classes to test, each as both query and index."""
    # Classes that share an image move together, so the first label of an image decides.
    moved = (table["split"] == "train") & table["label"].str.split("|").str[0].isin(classes)
    return _moved(table, moved, "test")


def split_validation(
    table: pd.DataFrame, fraction: float, seed: int, leave: Collection[str] = ()
) -> pd.DataFrame:
    """Move a share of each domain's train classes to val, each image as both query and index.

    Domains that have a val split, and those in `leave`, do not change. `table` is indexed from 0.
    """
    if fraction == 0:
        return table
    leave = {*leave, *table.loc[table["split"] == "val", "domain"]}
    train = table[(table["split"] == "train") & ~table["domain"].isin(leave)]
    return _moved(table, table.index.isin(_held_out(train, fraction, seed)), "val")


def _moved(table: pd.DataFrame, rows: pd.Series | np.ndarray, split: str) -> pd.DataFrame:
    """Move the rows of a mask to a split, each as both query and index."""
    return table.assign(
        split=table["split"].mask(rows, split), role=table["role"].mask(rows, "both")
    )


def _held_out(
    train: pd.DataFrame, fraction: float, seed: int, stay: Collection[str] = ()
) -> list[int]:
    """Return the rows of the `held_out_classes` of each domain."""
    rows: list[int] = []
    for _, members in memberships(train).groupby("domain"):
        held_out = members["label"].isin(held_out_classes(members, fraction, seed, stay))
        rows += members.loc[held_out, "row"].tolist()
    return rows


def held_out_classes(
    members: pd.DataFrame, fraction: float, seed: int, stay: Collection[str] = ()
) -> set[str]:
    """Choose the held-out classes of one domain: a rounded share, at least one, never all.

    Classes that share an image move together. A class with one image stays in train, because its
    query would have no positive, and so do those in `stay`. The order depends only on the seed and
    the class names.
    """
    images = members["label"].value_counts().to_dict()
    target = min(max(1, round(fraction * len(images))), len(images) - 1)
    groups = _linked_classes(members)
    chosen: set[str] = set()
    for position in np.argsort(seeded_draws(seed, (group[0] for group in groups))):
        group = groups[position]
        free = all(images[label] > 1 and label not in stay for label in group)
        if len(chosen) + len(group) <= target and free:
            chosen.update(group)
        if len(chosen) == target:
            break
    return chosen


def _linked_classes(members: pd.DataFrame) -> list[list[str]]:
    """Group classes so that no image has labels in two groups; sort within each group."""
    codes, names = pd.factorize(members["label"], sort=True)
    rows = members["row"].to_numpy()
    same = rows[1:] == rows[:-1]  # neighbouring labels of one image
    links = codes[:-1][same], codes[1:][same]
    graph = coo_matrix((np.ones(same.sum()), links), shape=(len(names), len(names)))
    _, group_C = connected_components(graph, directed=False)
    return pd.Series(names, dtype=object).groupby(group_C).agg(list).tolist()
