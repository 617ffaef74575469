"""Rules on the train classes of a table: sizes, caps, merges, shares, weights, and which are held out."""

import difflib
from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.config.data import OversampleConfig
from guie.curation.features import Embed, unit
from guie.data.manifest.reading import class_names, class_sizes, memberships


def train_members(table: pd.DataFrame) -> pd.DataFrame:
    """Return the `memberships` of the train rows, with their image paths."""
    members = memberships(table[table["split"] == "train"])
    return members.assign(image_path=table["image_path"].reindex(members["row"]).to_numpy())


def drop_rare(table: pd.DataFrame, min_images: int) -> pd.DataFrame:
    """Drop the train classes with fewer than `min_images` images; an image is dropped with its last class."""
    members = train_members(table)
    rare = class_sizes(members) < min_images
    kept, lost = members[~rare], members[rare]
    partly = kept[kept["row"].isin(lost["row"])]
    labels = table["label"].copy()
    labels.update(partly.groupby("row")["label"].agg("|".join))
    return _without(table.assign(label=labels), members, lost.index)


def cap(
    table: pd.DataFrame,
    max_images: int,
    choice: Literal["random", "first", "diverse"] = "random",
    *,
    seed: int = 0,
    embed: Embed | None = None,
) -> pd.DataFrame:
    """Keep `max_images` of each train class that has more.

    An image with several labels stays if one of its classes keeps it, so other classes may exceed the cap.

    Args:
        choice: `random` depends only on the seed, the label and the image paths of the class; `first` is by
            path; `diverse` takes the images that cover the class best in the feature space of `embed`.
    """
    members = train_members(table)
    large = members[class_sizes(members) > max_images].sort_values(["label", "image_path"])
    if choice == "random":
        draws = seeded_draws(seed, large["label"] + "/" + large["image_path"])
        large = large.assign(draw=draws).sort_values("draw")
    surplus = large.index[large.groupby("label").cumcount() >= max_images]
    if choice == "diverse":
        assert embed is not None
        chosen: list[int] = []
        for _, images in large.groupby("label"):
            features_ND = np.asarray(embed(images["image_path"].to_numpy(), "whole"), np.float32)
            chosen += images.index[farthest_points(features_ND, max_images)].tolist()
        surplus = large.index.drop(chosen)
    return _without(table, members, surplus)


def _without(table: pd.DataFrame, members: pd.DataFrame, surplus: pd.Index) -> pd.DataFrame:
    """Drop the train rows all of whose `members` are surplus."""
    kept, lost = members.drop(index=surplus)["row"], members.loc[surplus, "row"]
    return table.drop(index=lost[~lost.isin(kept)].unique()).reset_index(drop=True)


def farthest_points(features_ND: np.ndarray, count: int) -> np.ndarray:
    """Choose rows that cover all others: each is the farthest from those chosen before it.

    This is the greedy 2-approximation of the k-centre problem (Gonzalez, Clustering to minimize
    the maximum intercluster distance, 1985). It starts from the row nearest to the centroid.
    Ties go to the first row. The features have unit length, and `count` is at most N.
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


def apply_merges(table: pd.DataFrame, merge: Mapping[str, str]) -> pd.DataFrame:
    """Rename classes; their images move to the domain of the class they join. Raises UserError."""
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


def match_shares(
    table: pd.DataFrame, domain_of_row: pd.Series, shares: Mapping[str, float], seed: int
) -> pd.DataFrame:
    """Drop train images until each domain has its share, keeping as many images as possible.

    The scarcest domain keeps all its images, and a domain that is not listed none. The largest classes of a
    domain lose images first: no class loses its last image while another has two. The choice of images
    depends only on the seed and their paths.

    Raises UserError if a domain in `shares` has no train image.
    """
    train = table[table["split"] == "train"]
    domain = domain_of_row[train.index]
    present = domain.value_counts().to_dict()
    if missing := sorted(set(shares) - set(present)):
        raise UserError(
            f"shares: no train image in {', '.join(missing)}; found: {', '.join(sorted(present))}"
        )
    scale = min(present[name] / share for name, share in shares.items())
    drawn = train.assign(draw=seeded_draws(seed, train["image_path"])).sort_values("draw")
    chosen = []
    for name, share in shares.items():
        # One image of each class, then a second of each, ...
        turn = drawn[domain[drawn.index] == name].groupby("label").cumcount()
        chosen.append(turn.sort_values(kind="stable").index[: round(scale * share)])
    stays = (table["split"] != "train") | table.index.isin(np.concatenate(chosen))
    return table[stays].reset_index(drop=True)


def oversample(table: pd.DataFrame, config: OversampleConfig) -> pd.DataFrame:
    """Multiply each training image's weight by clip((target / n) ** power, 1, limit).

    n is the number of training images of its class, the rarest one if it has several labels.
    With power 1, a class with fewer than `target` images is drawn as if it had `target` (the 2nd
    place of the challenge repeated images up to 20 a class). Smaller powers oversample less.
    `table` is indexed from 0.
    """
    members = train_members(table)
    factor = ((config.target / class_sizes(members)) ** config.power).clip(1.0, config.limit)
    by_row = factor.groupby(members["row"]).max().reindex(table.index).fillna(1.0)
    return table.assign(weight=(table["weight"] if "weight" in table else 1.0) * by_row)


def choose_test_classes(
    table: pd.DataFrame,
    fraction: float,
    seed: int,
    leave: Collection[str] = (),
    merge: Mapping[str, str] | None = None,
) -> set[str]:
    """Choose a share of each domain's train classes to test on, as `held_out_classes` does.

    Domains that have a test split, and those in `leave`, keep all their classes in train. So do classes
    that cleaning will join to one of them. Any other class to `merge` moves with the one that absorbs it.
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

    Classes that share an image move together. A class with one image stays in train, because its query would
    have no positive, and so do those in `stay`. The order depends only on the seed and the class names.
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
