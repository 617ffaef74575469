"""Which images are copies of which: equal pixels, or near in hash and in features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from guie.config.cleaning import NearConfig
from guie.curation.hamming import close_pairs
from guie.curation.phash import Hashes
from guie.curation.seeded import seeded_draws

# Paths and the name of a view -> (N, D) features of unit length.
Embed = Callable[[Sequence[str], str], np.ndarray]

NEAR = {"picture": np.int64, "other": np.int64, "distance": np.int64, "similarity": np.float32}
SAMPLE = 256  # images that the least similarity is calibrated on
CONFIRMED = 0.05  # quantile of their similarity to altered copies of themselves
CHUNK = 8192  # pairs compared at once


@dataclass(frozen=True)
class Links:
    """Copies by picture, which is what images of equal pixels are, however many.

    No pairs of equal images: those grow with the square of their number. Labels and splits are left
    out, for they may change.
    """

    pictures: pd.Series  # image_path -> number of its picture, in the order of their first paths
    # Columns picture, other, distance in bits of the perceptual hash, similarity as a cosine. Each
    # pair of near pictures both ways around, by picture, the most alike first.
    near: pd.DataFrame

    @cached_property
    def beside(self) -> dict[int, list[int]]:
        """The pictures near each one that has any, the most alike first."""
        starts = np.flatnonzero(self.near["picture"].diff() != 0)
        others = np.split(self.near["other"].to_numpy(), starts[1:])
        pictures = self.near["picture"].iloc[starts]
        return {one: near.tolist() for one, near in zip(pictures, others, strict=False)}


def find_links(table: pd.DataFrame, near: NearConfig | None, embed: Embed) -> Links:
    """The pictures of all images, and which are nearly equal.

    Args:
        table: a manifest's rows with the columns of `fingerprints`.
        near: what counts as nearly equal; None: equal pixels only.
        embed: features to confirm by, asked for images that have a hash near another's.
    """
    images = table[["image_path", "pixels", *Hashes._fields]].drop_duplicates("image_path")
    images = images.sort_values("image_path")
    numbers = pd.Series(pd.factorize(images["pixels"])[0], images["image_path"], name="picture")
    if near is None:
        return Links(numbers, pd.DataFrame(columns=list(NEAR)).astype(NEAR))
    firsts = images.drop_duplicates("pixels")
    return Links(numbers, _nearly_equal(firsts, near, embed).astype(NEAR))


def _nearly_equal(pictures: pd.DataFrame, near: NearConfig, embed: Embed) -> pd.DataFrame:
    """`Links.near`, of pictures that are each one row."""
    pairs = close_pairs(pictures, near.distance_max, near.mirrored)
    paths = pictures["image_path"].to_numpy(object)
    pairs = pairs.assign(similarity=_similarity(pairs, paths, embed))
    least = near.similarity_min
    if least is None and len(pairs):
        least = similarity_of_copies(paths, embed)
    if least is not None:
        pairs = pairs[pairs["similarity"] >= least]
    ways = [{"first": "picture", "second": "other"}, {"second": "picture", "first": "other"}]
    both = pd.concat([pairs.rename(columns=names) for names in ways])
    order = ["picture", "similarity", "other"]
    return both.sort_values(order, ascending=[True, False, True], ignore_index=True)


def similarity_of_copies(paths: np.ndarray, embed: Embed) -> float:
    """The cosine that 95 in 100 images have to a copy of themselves that was cut and compressed."""
    sample = paths[np.argsort(seeded_draws(0, paths), kind="stable")[:SAMPLE]]
    plain_ND, altered_ND = (np.asarray(embed(sample, view)) for view in ("content", "altered"))
    return float(np.quantile(np.einsum("nd,nd->n", plain_ND, altered_ND), CONFIRMED))


def _similarity(pairs: pd.DataFrame, paths: np.ndarray, embed: Embed) -> np.ndarray:
    """(P,) cosines, of the pictures without their borders."""
    used, place = np.unique(pairs[["first", "second"]].to_numpy(np.int64), return_inverse=True)
    place = place.reshape(-1, 2)
    features = embed(paths[used], "content") if len(used) else None
    found = np.empty(len(pairs), np.float32)
    for start in range(0, len(pairs), CHUNK):
        first, second = place[start : start + CHUNK].T
        part = np.einsum("nd,nd->n", features[first], features[second])
        found[start : start + CHUNK] = part
    return found
