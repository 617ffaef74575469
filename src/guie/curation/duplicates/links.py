"""Links between copies. Cheap tests run first: hashes propose pairs, features filter them, pixels decide."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import pandas as pd

from guie.base.seeds import seeded_draws
from guie.config.data import NearConfig
from guie.curation.duplicates.differences import PixelDifferences
from guie.curation.duplicates.limits import ALIKE, CROSS, LIMITS, UNLIKE, Grade, graded, limits
from guie.curation.duplicates.pairs import close_pairs
from guie.curation.features import Embed
from guie.curation.findings import Verdicts
from guie.rows.fingerprints import Hashes

# Columns of `Links.near`.
# distance: bits of the perceptual hash; similarity: cosine; difference: from `rows.comparison.compare`.
# sure_limit, copy_limit: of a certain copy, and of any copy. confirmed: by a person's verdict.
NEAR = dict.fromkeys(["picture", "other", "distance", "grade"], "int64")
NEAR |= dict.fromkeys(["similarity", "difference", "sure_limit", "copy_limit"], "float64")
NEAR |= {"confirmed": "bool"}
WAYS = [{"first": "picture", "second": "other"}, {"second": "picture", "first": "other"}]
SAMPLE = 256  # images that calibrate the minimum similarity
LOW = 0.01  # quantile of their similarity to cropped and compressed copies of themselves
# Factor on that quantile's distance from 1. Real copies also differ in light, and the stricter
# pixel comparison follows.
ROOM = 2.0
ALTERED = 48  # images of a domain whose altered copies measure how much copies differ there
CHUNK = 8192  # pairs compared at once


@dataclass(frozen=True, eq=False)
class Links:
    """Links between copies, by picture: all images with equal pixels, whose pairs would be too many."""

    pictures: pd.Series  # image_path -> number of its picture, in the order of their first paths
    # NEAR, each pair in both directions, sorted by picture, then by difference, smallest first
    near: pd.DataFrame
    limits: pd.DataFrame  # the result of `limits.limits`

    @cached_property
    def neighbours(self) -> dict[int, list[int]]:
        """The near pictures of each picture that has any, smallest difference first."""
        return self.near.groupby("picture")["other"].agg(list).to_dict()

    @cache  # noqa: B019 - two grades, and a mix has one such table
    def of(self, grade: Grade, below: bool = False) -> Links:
        """Return the links of at least that grade, or those below it."""
        kept = (self.near["grade"] >= grade) != below
        return replace(self, near=self.near[kept].reset_index(drop=True))


def find_links(
    table: pd.DataFrame,
    near: NearConfig | None,
    embed: Embed,
    differences: PixelDifferences,
    verdicts: Verdicts | None = None,
) -> Links:
    """Return the pictures of all images, and which of them are near-duplicates.

    Args:
        table: a manifest's rows with the columns of `FINGERPRINTS`.
        near: near-duplicate settings; None finds equal pixels only.
        embed, differences: for images with a hash near another's, and for pairs with similar features.
        verdicts: a person's decisions on pairs.
    """
    images = images_of(table)
    numbers = pd.Series(pd.factorize(images["pixels"])[0], images["image_path"], name="picture")
    pairs = pd.DataFrame(columns=[*NEAR]).astype(NEAR)
    pairs = pairs.rename(columns={"picture": "first", "other": "second"})
    found = pd.DataFrame(columns=LIMITS)
    if near is not None:
        firsts = images.drop_duplicates("pixels").reset_index(drop=True)
        pairs = measured(firsts, near, embed, differences)
        ends = np.unique(pairs[["first", "second"]].to_numpy(np.int64))
        involved = firsts["domain"].isin(firsts["domain"].iloc[ends])
        altered = {}  # by domain, differences between some images and altered copies of them
        for domain, rows in firsts[involved].groupby("domain"):
            drawn = np.argsort(seeded_draws(0, rows["image_path"]), kind="stable")[:ALTERED]
            altered[domain] = differences.altered(rows["image_path"].iloc[drawn].tolist())
        found = limits(pairs, firsts.groupby("domain").size(), altered, near)
        pairs = graded(pairs, found).assign(confirmed=False)
    if verdicts is not None:
        pairs = verdicts.applied(pairs, numbers)
    both = pd.concat([pairs.rename(columns=names) for names in WAYS])[list(NEAR)].astype(NEAR)
    both = both.sort_values(["picture", "difference", "other"], ignore_index=True)
    return Links(numbers, both, found)


def images_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return what links need of each image of a manifest, sorted by path."""
    columns = ["image_path", "domain", "label", "pixels", *Hashes._fields]
    return table[columns].drop_duplicates("image_path").sort_values("image_path")


def measured(
    pictures: pd.DataFrame,
    near: NearConfig,
    embed: Embed,
    differences: PixelDifferences,
    part: tuple[int, int] = (0, 1),
) -> pd.DataFrame:
    """Measure the pairs of pictures that part n of m of them proposes by hash, filtered by features.

    Returns columns first < second (positions in `pictures`), distance, similarity, difference, and the
    domain and labels that `limits` expects.
    """
    pairs = close_pairs(pictures, near.distance_max, near.mirrored, part)
    paths, least = pictures["image_path"].to_numpy(object), near.similarity_min
    pairs = pairs.assign(similarity=_similarity(pairs, paths, embed))
    # Rows of mirror images differ, so with `mirrored` pixels alone decide on proposed pairs.
    if least is None and len(pairs) and not near.mirrored:
        sample = paths[np.argsort(seeded_draws(0, paths), kind="stable")[:SAMPLE]].tolist()
        plain_ND, altered_ND = (np.asarray(embed(sample, view)) for view in ("content", "altered"))
        own_N = np.einsum("nd,nd->n", plain_ND, altered_ND)
        least = 1 - ROOM * (1 - float(np.quantile(own_N, LOW)))
    if least is not None:
        pairs = pairs[pairs["similarity"] >= least].reset_index(drop=True)
    one, other = (pictures.iloc[pairs[end]].reset_index(drop=True) for end in ("first", "second"))
    ends = list(zip(one["image_path"], other["image_path"], strict=True))
    unlike = [
        set(own.split("|")).isdisjoint(others.split("|"))
        for own, others in zip(one["label"], other["label"], strict=True)
    ]
    return pairs.assign(
        difference=differences.between(ends, near.mirrored) if ends else np.empty(0),
        domain=one["domain"].where(one["domain"] == other["domain"], CROSS),
        labels=np.where(np.array(unlike, bool), UNLIKE, ALIKE),
    )


def _similarity(pairs: pd.DataFrame, paths: np.ndarray, embed: Embed) -> np.ndarray:
    """Return (P,) cosines of the pictures without their borders."""
    found = np.empty(len(pairs), np.float32)
    if not len(pairs):
        return found
    used, place = np.unique(pairs[["first", "second"]].to_numpy(np.int64), return_inverse=True)
    place = place.reshape(-1, 2)
    features = embed(paths[used], "content")
    for start in range(0, len(pairs), CHUNK):
        first, second = place[start : start + CHUNK].T
        found[start : start + CHUNK] = np.einsum("nd,nd->n", features[first], features[second])
    return found
