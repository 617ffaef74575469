"""Candidate duplicates: pairs of similar perceptual hashes, and links between copies.

Cheap tests run first: hashes, then features, then pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.base.seeds import seeded_draws
from guie.config.data import NearConfig
from guie.curation.duplicates.evidence import (
    ALIKE,
    COLUMNS,
    CROSS,
    UNLIKE,
    Embed,
    Grade,
    graded,
    limits,
)
from guie.curation.duplicates.findings import Verdicts
from guie.curation.duplicates.hamming import BITS, near_hashes
from guie.curation.duplicates.pixels import Pixels
from guie.rows.hashes import Hashes, hash_bytes

# If many images share a hash, the first 32 represent all of them. Otherwise N copies of one
# placeholder would make N squared pairs.
ANCHORS = 32


class Owners(NamedTuple):
    """H distinct hashes, and for each hash the sorted positions of its images."""

    hashes: np.ndarray  # (H, 8) uint8
    images: np.ndarray  # positions for the first hash, then for the second, and so on
    starts: np.ndarray  # (H,) where the positions of each hash start
    counts: np.ndarray  # (H,) number of images of each hash


def close_pairs(prints: pd.DataFrame, radius_bits: int, mirrored: bool) -> pd.DataFrame:
    """Find pairs of rows where a hash of one is within `radius_bits` of a hash of the other.

    The centre of one image is also compared with the whole of the other, to find crops.
    All images of a hash are paired with the first 32 images of each similar hash.

    Args:
        prints: the columns of `Hashes`; an empty hash matches nothing.
        mirrored: also compare each image with the mirror images of the others.

    Returns:
        Columns first < second (positions in `prints`) and distance in bits, sorted.
    """
    queries = _owners(prints, ["whole", "content", *(["mirrored"] if mirrored else [])])
    known = _owners(prints, ["whole", "content", "centre"])
    known = known._replace(counts=np.minimum(known.counts, ANCHORS))
    # A pair and its distance are encoded as one number, so sorting finds each pair's minimum.
    found = [np.empty(0, np.int64)]
    for names, others, distance in near_hashes(queries.hashes, known.hashes, radius_bits):
        first, second, hit = _images(queries, names, known, others)
        low, high = np.minimum(first, second), np.maximum(first, second)
        code = (low * len(prints) + high) * (BITS + 1) + distance[hit]
        found.append(np.unique(code[low < high]))
    pair, distance = np.divmod(np.unique(np.concatenate(found)), BITS + 1)
    least = _differs(pair)
    first, second = np.divmod(pair[least], max(len(prints), 1))
    return pd.DataFrame({"first": first, "second": second, "distance": distance[least]})


def _owners(prints: pd.DataFrame, names: Sequence[str]) -> Owners:
    columns = [prints[name].to_numpy(object) for name in names]
    owners = [np.flatnonzero(column != "") for column in columns]
    filled = [hash_bytes(column[own]) for column, own in zip(columns, owners, strict=True)]
    hashes, images = np.concatenate(filled).view(np.uint64)[:, 0], np.concatenate(owners)
    order = np.lexsort((images, hashes))
    hashes, images = hashes[order], images[order]
    new_hash = _differs(hashes)
    kept = new_hash | _differs(images)
    images, starts = images[kept], np.flatnonzero(new_hash[kept])
    return Owners(
        hashes[new_hash][:, None].view(np.uint8),
        images,
        starts,
        np.diff(starts, append=len(images)),
    )


def _differs(values: np.ndarray) -> np.ndarray:
    """Return a mask of the values that differ from the value before them."""
    return np.append(np.ones(min(len(values), 1), bool), values[1:] != values[:-1])


def _images(
    queries: Owners, names: np.ndarray, known: Owners, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pair all images of each hash in `names` with those of its match in `others`.

    Also return the position of that match for each pair.
    """
    counts = queries.counts[names] * known.counts[others]
    hit = np.repeat(np.arange(len(names)), counts)
    number = np.arange(len(hit)) - np.repeat(np.cumsum(counts) - counts, counts)
    first, second = np.divmod(number, known.counts[others][hit])
    return (
        queries.images[queries.starts[names][hit] + first],
        known.images[known.starts[others][hit] + second],
        hit,
    )


NEAR = {
    **{"picture": np.int64, "other": np.int64, "distance": np.int64, "similarity": np.float64},
    **{"difference": np.float64, "sure_limit": np.float64, "copy_limit": np.float64},
    **{"grade": np.int64, "said": np.bool_},  # said: by a person
}
PAIR = ["first", "second", *list(NEAR)[2:]]  # the same columns, each pair once
SAMPLE = 256  # images that calibrate the minimum similarity
CONFIRMED = 0.01  # quantile of their similarity to altered copies of themselves
# Factor on that quantile's distance from 1. Real copies also differ in light, and the stricter
# pixel comparison follows.
ROOM = 2.0
ALTERED = 48  # images of a domain whose altered copies measure how much copies differ there
CHUNK = 8192  # pairs compared at once


@dataclass(frozen=True, eq=False)
class Links:
    """Links between copies, by picture. All images with equal pixels are one picture.

    Pairs of equal images are not listed, because their number grows quadratically. Labels and
    splits are not stored, because they may change.
    """

    pictures: pd.Series  # image_path -> number of its picture, in the order of their first paths
    # Columns of NEAR: distance in bits of the perceptual hash, similarity as a cosine, difference
    # from `rows.comparison.compare`, its limits for a certain copy and for any copy, the
    # Grade, and whether a person gave that grade. Each pair is listed in both directions, sorted by
    # picture, then by difference, smallest first.
    near: pd.DataFrame
    limits: pd.DataFrame  # the result of `evidence.limits`

    @cached_property
    def beside(self) -> dict[int, list[int]]:
        """The near pictures of each picture that has any, smallest difference first."""
        starts = np.flatnonzero(self.near["picture"].diff() != 0)
        others = np.split(self.near["other"].to_numpy(), starts[1:])
        pictures = self.near["picture"].iloc[starts]
        return {one: near.tolist() for one, near in zip(pictures, others, strict=False)}

    @cache  # noqa: B019 - two grades, and a mix has one such table
    def of(self, grade: Grade) -> Links:
        """Return the links of at least that grade."""
        return self._with(self.near["grade"] >= grade)

    @cache  # noqa: B019 - as above
    def below(self, grade: Grade) -> Links:
        """Return the near links below that grade."""
        return self._with(self.near["grade"] < grade)

    def _with(self, kept: pd.Series) -> Links:
        return replace(self, near=self.near[kept].reset_index(drop=True))


def find_links(
    table: pd.DataFrame,
    near: NearConfig | None,
    embed: Embed,
    differences: Pixels,
    verdicts: Verdicts | None = None,
) -> Links:
    """Return the pictures of all images, and which of them are near-duplicates.

    Args:
        table: a manifest's rows with the columns of `FINGERPRINTS`.
        near: near-duplicate settings; None finds equal pixels only.
        embed: computes features, for images with a hash near another's.
        differences: computes pixel differences, for pairs with similar features.
        verdicts: a person's decisions on pairs.
    """
    images = images_of(table)
    numbers = pd.Series(pd.factorize(images["pixels"])[0], images["image_path"], name="picture")
    pairs, found = pd.DataFrame(columns=PAIR), pd.DataFrame(columns=COLUMNS)
    if near is not None:
        firsts = images.drop_duplicates("pixels").reset_index(drop=True)
        pairs = measured(firsts, near, embed, differences)
        sizes = firsts.groupby("domain").size()
        involved = firsts[firsts["domain"].isin(_domains(pairs, firsts))]
        found = limits(pairs, sizes, altered(involved, differences), near)
        pairs = graded(pairs, found).assign(said=False)
    if verdicts is not None:
        pairs = verdicts.applied(pairs, numbers)
    return Links(numbers, _both_ways(pairs), found)


def images_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return what links need of each image of a manifest, sorted by path."""
    columns = ["image_path", "domain", "label", "pixels", *Hashes._fields]
    return table[columns].drop_duplicates("image_path").sort_values("image_path")


def measured(
    pictures: pd.DataFrame,
    near: NearConfig,
    embed: Embed,
    differences: Pixels,
    shard: tuple[int, int] = (0, 1),
) -> pd.DataFrame:
    """Measure pairs of pictures, one row each: hashes propose pairs, features filter them.

    Args:
        shard: N and M, to measure only part N of M of the proposed pairs.

    Returns:
        Columns first < second (positions in `pictures`), distance, similarity, difference, and
        the domain and labels that `evidence.limits` expects.
    """
    pairs = close_pairs(pictures, near.distance_max, near.mirrored)
    first, last = (part * len(pairs) // shard[1] for part in (shard[0], shard[0] + 1))
    pairs = pairs.iloc[first:last].reset_index(drop=True)
    paths = pictures["image_path"].to_numpy(object)
    pairs = pairs.assign(similarity=_similarity(pairs, paths, embed))
    least = near.similarity_min
    # Rows of mirror images differ, so with `mirrored` pixels alone decide on proposed pairs.
    if least is None and len(pairs) and not near.mirrored:
        least = 1 - ROOM * (1 - similarity_of_copies(paths, embed))
    if least is not None:
        pairs = pairs[pairs["similarity"] >= least].reset_index(drop=True)
    one, other = (pictures.iloc[pairs[end]].reset_index(drop=True) for end in ("first", "second"))
    ends = list(zip(one["image_path"], other["image_path"], strict=True))
    same = one["domain"] == other["domain"]
    return pairs.assign(
        difference=differences.between(ends, near.mirrored) if ends else np.empty(0),
        domain=one["domain"].where(same, CROSS),
        labels=_labels(one["label"], other["label"]),
    )


def altered(pictures: pd.DataFrame, differences: Pixels) -> dict[str, np.ndarray]:
    """Return, by domain, the differences between some images and altered copies of them."""
    found = {}
    for domain, rows in pictures.groupby("domain"):
        drawn = np.argsort(seeded_draws(0, rows["image_path"]), kind="stable")[:ALTERED]
        found[domain] = differences.altered(rows["image_path"].iloc[drawn].tolist())
    return found


def _domains(pairs: pd.DataFrame, pictures: pd.DataFrame) -> np.ndarray:
    """Return the domains that have a picture in some pair."""
    ends = np.unique(pairs[["first", "second"]].to_numpy(np.int64))
    return pictures["domain"].iloc[ends].unique()


def similarity_of_copies(paths: np.ndarray, embed: Embed, quantile: float = CONFIRMED) -> float:
    """Return the cosine that 99 % of images exceed to a cropped and compressed copy of themselves."""
    sample = paths[np.argsort(seeded_draws(0, paths), kind="stable")[:SAMPLE]]
    plain_ND, altered_ND = (
        np.asarray(embed(sample.tolist(), view)) for view in ("content", "altered")
    )
    return float(np.quantile(np.einsum("nd,nd->n", plain_ND, altered_ND), quantile))


def _similarity(pairs: pd.DataFrame, paths: np.ndarray, embed: Embed) -> np.ndarray:
    """Return (P,) cosines of the pictures without their borders."""
    used, place = np.unique(pairs[["first", "second"]].to_numpy(np.int64), return_inverse=True)
    place = place.reshape(-1, 2)
    found = np.empty(len(pairs), np.float32)
    if not len(pairs):
        return found
    features = embed(paths[used], "content")
    for start in range(0, len(pairs), CHUNK):
        first, second = place[start : start + CHUNK].T
        part = np.einsum("nd,nd->n", features[first], features[second])
        found[start : start + CHUNK] = part
    return found


def _labels(first: pd.Series, second: pd.Series) -> np.ndarray:
    """Return (P,) ALIKE or UNLIKE: whether the first images of two pictures share a label."""
    sets = {label: frozenset(label.split("|")) for label in pd.concat([first, second]).unique()}
    pairs = zip(first.map(sets), second.map(sets), strict=True)
    return np.array([UNLIKE if one.isdisjoint(other) else ALIKE for one, other in pairs], object)


def _both_ways(pairs: pd.DataFrame) -> pd.DataFrame:
    ways = [{"first": "picture", "second": "other"}, {"second": "picture", "first": "other"}]
    both = pd.concat([pairs.rename(columns=names) for names in ways])[list(NEAR)].astype(NEAR)
    return both.sort_values(["picture", "difference", "other"], ignore_index=True)
