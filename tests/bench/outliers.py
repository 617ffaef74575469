"""Outliers and merges on real images: what they take of clean data, what they find of planted faults.

python tests/bench/outliers.py [outliers] [merges] [--seeds 3] [--z 3.5] [--features runs/bench/features]

Needs $GUIE_REAL, and embeds mini-uned's training images by the real ViT-Ti at 112 px once. `outliers`
gives 2 % of each domain's images another label of the domain, and puts an image of another domain in
the place of 1 %; told are the shares that are taken: of the images left alone, and of either kind of
fault, by the distance to the own class alone (before) and by how much another class is nearer.
`merges` makes two data sets of one: a fifth of the classes is split between them, another fifth
moved as a whole; told is how many of the suggestions are right, and which share of the split classes
they are.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
from common import arguments, real_benchmark, show, show_frame

from guie.base.devices import make_accelerator
from guie.base.errors import run
from guie.config.data import OutlierConfig
from guie.curation.centroids import LEAST, class_cosines, robust_z, suggest_merges
from guie.data.manifest.reading import memberships
from guie.models import open_model
from guie.rows.embedding import stored_features

WRONG, JUNK = "another class", "another domain"
SECOND = "#2"  # of a class that stands in two data sets


class Embedded:
    """Training rows of mini-uned and their features, which are kept in a folder."""

    def __init__(self, features: str):
        manifest, name = real_benchmark()
        rows = manifest.table[manifest.table["split"] == "train"].reset_index(drop=True)
        paths = rows["image_path"].tolist()
        found = stored_features(
            make_accelerator(), open_model(name, 112), paths, manifest.root, features, workers=2
        )
        self.rows, self.features_ND = rows, np.array(found, np.float32)


def planted_faults(data: Embedded, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """The rows, with what is wrong with them in column `fault`, and their features."""
    rng = np.random.default_rng(seed)
    table, features_ND = data.rows.assign(fault=""), data.features_ND.copy()
    for domain, own in data.rows.groupby("domain"):
        labels = own["label"].unique()
        drawn = rng.permutation(own.index)
        wrong, junk = np.split(drawn[: 3 * len(own) // 100], [2 * len(own) // 100])
        for row in wrong:
            table.loc[row, "label"] = rng.choice(labels[labels != own.loc[row, "label"]])
        others = rng.choice(data.rows.index[data.rows["domain"] != domain], len(junk))
        features_ND[junk] = data.features_ND[others]
        table.loc[wrong, "fault"], table.loc[junk, "fault"] = WRONG, JUNK
    return table, features_ND


def measure_outliers(data: Embedded, args: argparse.Namespace) -> None:
    shares = []
    for seed in range(args.seeds):
        table, features_ND = planted_faults(data, seed)
        members = memberships(table)
        large = members.groupby("label")["label"].transform("size") >= LEAST
        members = members[large].reset_index(drop=True)
        own, other = class_cosines(members, features_ND[members["row"]])
        fault = table["fault"].reindex(members["row"]).to_numpy()
        for rule, distance in {"before": 1 - own, "now": other - own}.items():
            z = pd.Series(distance).groupby(members["domain"]).transform(robust_z)
            share = (z > args.z).groupby([members["domain"], fault]).mean()
            shares.append(share.rename_axis(["domain", "fault"]).rename(f"{rule} {seed}"))
    drawings = pd.concat(shares, axis=1)
    drawings.columns = pd.MultiIndex.from_tuples([tuple(name.split()) for name in drawings])
    mean = drawings.T.groupby(level=0).mean().T.unstack("fault").rename(columns={"": "left alone"})
    mean.columns = [f"{rule}, {fault}" for rule, fault in mean]
    show_frame(mean, f"shares taken at z > {args.z}, mean of {args.seeds} drawings")


def measure_merges(data: Embedded, args: argparse.Namespace) -> None:
    rows = []
    for seed in range(args.seeds):
        rng = np.random.default_rng(seed)
        table = data.rows.assign(dataset="one")
        size = table.groupby("label")["label"].transform("size")
        labels = rng.permutation(table.loc[size >= 4, "label"].unique())
        split, moved = np.split(labels[: 2 * len(labels) // 5], 2)
        half = table["label"].isin(split) & (table.groupby("label").cumcount() % 2 == 1)
        table.loc[half, "label"] += SECOND
        table.loc[half | table["label"].isin(moved), "dataset"] = "two"
        place = dict(zip(table["image_path"], table.index, strict=True))
        embed = lambda paths, view, at=place: data.features_ND[[at[path] for path in paths]]  # noqa: E731
        found = suggest_merges(table, -1.0, embed)
        names = [found[end].str.removesuffix(SECOND) for end in ("label", "into")]
        right = names[0] == names[1]
        for least in (0.8, 0.9, 0.95):
            taken = found["similarity"] >= least
            share = right[taken].sum() / len(split)
            rows.append((seed, least, taken.sum(), right[taken].mean(), share, len(split)))
    heads = ["seed", "cosine", "suggested", "right", "of split", "split classes"]
    show(heads, rows, "merges of a set that was made two")
    clean = suggest_merges(data.rows, 0.8, lambda paths, view: data.features_ND)
    surest = (clean["similarity"] >= 0.9).sum()
    print(f"of the clean set, its domains as data sets: {len(clean)} at .8, {surest} at .9")


PARTS = {"outliers": measure_outliers, "merges": measure_merges}


def main(_: object = None) -> None:
    args = arguments(
        __doc__,
        parts=list(PARTS),
        seeds=3,
        z=OutlierConfig().z_max,
        features="runs/bench/features",
    )
    data = Embedded(args.features)
    for part in args.parts:
        PARTS[part](data, args)


if __name__ == "__main__":
    run(main)
