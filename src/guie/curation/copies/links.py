"""Which images are copies of which: equal pixels, or near by steps of evidence, cheap ones first.

Perceptual hashes name candidates, features (or thumbnails) those of them that are alike at all,
and of these the pixels decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from guie.base.seeds import seeded_draws
from guie.config.cleaning import NearConfig
from guie.curation.copies.evidence import ALIKE, COLUMNS, CROSS, UNLIKE, Grade, graded, limits
from guie.curation.copies.hamming import close_pairs
from guie.curation.copies.verdicts import Verdicts
from guie.data.looks.hashes import Hashes
from guie.evaluation.features import Embed


class Differences(Protocol):
    """How much pictures differ by their pixels: see `guie.curation.copies.pixels.Pixels`."""

    def between(self, pairs: Sequence[tuple[str, str]], mirrored: bool) -> np.ndarray: ...
    def altered(self, paths: Sequence[str]) -> np.ndarray: ...


NEAR = {
    **{"picture": np.int64, "other": np.int64, "distance": np.int64, "similarity": np.float64},
    **{"difference": np.float64, "sure_limit": np.float64, "copy_limit": np.float64},
    **{"grade": np.int64, "said": np.bool_},  # by a person
}
PAIR = ["first", "second", *list(NEAR)[2:]]  # the same, each pair once
SAMPLE = 256  # images that the least similarity is calibrated on
CONFIRMED = 0.01  # quantile of their similarity to altered copies of themselves
# Times as far from 1 as these: light changes too, and pixels look closer at what is let through.
ROOM = 2.0
ALTERED = 48  # images of a domain whose altered copies say how much copies differ there
CHUNK = 8192  # pairs compared at once


@dataclass(frozen=True, eq=False)
class Links:
    """Copies by picture, which is what images of equal pixels are, however many.

    No pairs of equal images: those grow with the square of their number. Labels and splits are left
    out, for they may change.
    """

    pictures: pd.Series  # image_path -> number of its picture, in the order of their first paths
    # Columns of NEAR: distance in bits of the perceptual hash, similarity as a cosine, difference
    # as `difference.compare` has it, what it may be for a copy beyond doubt and for one at all, the
    # Grade, and whether that is a person's word. Each pair both ways around, by picture, those that
    # differ least first.
    near: pd.DataFrame
    limits: pd.DataFrame  # what `evidence.limits` found

    @cached_property
    def beside(self) -> dict[int, list[int]]:
        """The pictures near each one that has any, those that differ least first."""
        starts = np.flatnonzero(self.near["picture"].diff() != 0)
        others = np.split(self.near["other"].to_numpy(), starts[1:])
        pictures = self.near["picture"].iloc[starts]
        return {one: near.tolist() for one, near in zip(pictures, others, strict=False)}

    @cache  # noqa: B019 - two grades, and a mix has one such table
    def of(self, grade: Grade) -> Links:
        """Those of that grade at least."""
        return self._with(self.near["grade"] >= grade)

    @cache  # noqa: B019 - as above
    def below(self, grade: Grade) -> Links:
        """Those that are near, but not of that grade."""
        return self._with(self.near["grade"] < grade)

    def _with(self, kept: pd.Series) -> Links:
        return replace(self, near=self.near[kept].reset_index(drop=True))


def find_links(
    table: pd.DataFrame,
    near: NearConfig | None,
    embed: Embed,
    differences: Differences,
    verdicts: Verdicts | None = None,
) -> Links:
    """The pictures of all images, and which are nearly equal.

    Args:
        table: a manifest's rows with the columns of `fingerprints`.
        near: what counts as nearly equal; None: equal pixels only.
        embed: features of images that have a hash near another's.
        differences: by pixels, of those whose features are alike.
        verdicts: of a person, who has looked.
    """
    columns = ["image_path", "domain", "label", "pixels", *Hashes._fields]
    images = table[columns].drop_duplicates("image_path").sort_values("image_path")
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


def measured(
    pictures: pd.DataFrame, near: NearConfig, embed: Embed, differences: Differences
) -> pd.DataFrame:
    """Pairs of pictures that are each one row: what hashes name and features let through.

    Returns:
        Columns first < second (positions in `pictures`), distance, similarity, difference; domain
        and labels as `evidence.limits` takes them.
    """
    pairs = close_pairs(pictures, near.distance_max, near.mirrored)
    paths = pictures["image_path"].to_numpy(object)
    pairs = pairs.assign(similarity=_similarity(pairs, paths, embed))
    least = near.similarity_min
    # a mirror image is not alike by thumbnails: then pixels alone decide on what hashes name
    if least is None and len(pairs) and not near.mirrored:
        least = 1 - ROOM * (1 - similarity_of_copies(paths, embed))
    if least is not None:
        pairs = pairs[pairs["similarity"] >= least].reset_index(drop=True)
    first, second = (
        pictures.iloc[pairs[end]].reset_index(drop=True) for end in ("first", "second")
    )
    ends = list(zip(first["image_path"], second["image_path"], strict=True))
    same = first["domain"] == second["domain"]
    return pairs.assign(
        difference=differences.between(ends, near.mirrored) if ends else np.empty(0),
        domain=first["domain"].where(same, CROSS),
        labels=_labels(first["label"], second["label"]),
    )


def altered(pictures: pd.DataFrame, differences: Differences) -> dict[str, np.ndarray]:
    """By domain, how much altered copies of some of its images differ from them."""
    found = {}
    for domain, rows in pictures.groupby("domain"):
        drawn = np.argsort(seeded_draws(0, rows["image_path"]), kind="stable")[:ALTERED]
        found[domain] = differences.altered(rows["image_path"].iloc[drawn].tolist())
    return found


def _domains(pairs: pd.DataFrame, pictures: pd.DataFrame) -> np.ndarray:
    """The domains that have a picture in some pair."""
    ends = np.unique(pairs[["first", "second"]].to_numpy(np.int64))
    return pictures["domain"].iloc[ends].unique()


def similarity_of_copies(paths: np.ndarray, embed: Embed, quantile: float = CONFIRMED) -> float:
    """The cosine that 99 in 100 images have to a copy of themselves that was cut and compressed."""
    sample = paths[np.argsort(seeded_draws(0, paths), kind="stable")[:SAMPLE]]
    plain_ND, altered_ND = (
        np.asarray(embed(sample.tolist(), view)) for view in ("content", "altered")
    )
    return float(np.quantile(np.einsum("nd,nd->n", plain_ND, altered_ND), quantile))


def _similarity(pairs: pd.DataFrame, paths: np.ndarray, embed: Embed) -> np.ndarray:
    """(P,) cosines, of the pictures without their borders."""
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
    """(P,) whether two pictures, by the first image of each, have a label in common."""
    sets = {label: frozenset(label.split("|")) for label in pd.concat([first, second]).unique()}
    pairs = zip(first.map(sets), second.map(sets), strict=True)
    return np.array([UNLIKE if one.isdisjoint(other) else ALIKE for one, other in pairs], object)


def _both_ways(pairs: pd.DataFrame) -> pd.DataFrame:
    ways = [{"first": "picture", "second": "other"}, {"second": "picture", "first": "other"}]
    both = pd.concat([pairs.rename(columns=names) for names in ways])[list(NEAR)].astype(NEAR)
    return both.sort_values(["picture", "difference", "other"], ignore_index=True)
