"""Which images are copies of which: equal pixels, or near in hash and in features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from guie.config.cleaning import NearConfig
from guie.curation.hamming import close_pairs
from guie.curation.seeded import seeded_draws

# Paths and the name of a view -> (N, D) features of unit length.
Embed = Callable[[Sequence[str], str], np.ndarray]

COLUMNS = ["image_path", "other_path", "copy", "distance", "similarity"]
SAMPLE = 256  # images that the least similarity is calibrated on
CONFIRMED = 0.05  # quantile of their similarity to altered copies of themselves
CHUNK = 65_536  # pairs compared at once


def find_links(table: pd.DataFrame, near: NearConfig | None, embed: Embed) -> pd.DataFrame:
    """Every pair of copies, the later by path first.

    Of images that have pixels, split and label in common only the first is named as `other_path`,
    for N equal images make N squared pairs and one tells as much.

    Args:
        table: a manifest's rows with the columns of `fingerprints`.
        near: what counts as nearly equal; None: equal pixels only.
        embed: features to confirm by.

    Returns:
        Columns image_path, other_path, copy (`exact` or `near`), distance in bits of the perceptual
        hash, similarity as a cosine.
    """
    images = table.sort_values("image_path", ignore_index=True)
    pictures = images.drop_duplicates("pixels").reset_index(drop=True)
    edges = [_equal(pictures)]
    if near is not None and len(pictures) > 1:
        edges.append(_nearly_equal(pictures, near, embed))
    faces = images.drop_duplicates(["pixels", "split", "label"])[["image_path", "pixels"]]
    links = (
        images[["image_path", "pixels"]]
        .drop_duplicates()
        .merge(pd.concat(edges), on="pixels")
        .merge(faces.set_axis(["other_path", "other_pixels"], axis=1), on="other_pixels")
    )
    swapped = links["image_path"] < links["other_path"]
    ends = ["image_path", "other_path"]
    links.loc[swapped, ends] = links.loc[swapped, ends[::-1]].to_numpy()
    links = links[links["image_path"] != links["other_path"]]
    return links.drop_duplicates(ends)[COLUMNS].sort_values(ends, ignore_index=True)


def _equal(pictures: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {"pixels": pictures["pixels"], "other_pixels": pictures["pixels"], "copy": "exact"}
    ).assign(distance=0, similarity=1.0)


def _nearly_equal(pictures: pd.DataFrame, near: NearConfig, embed: Embed) -> pd.DataFrame:
    """Pairs of different pictures, both ways around."""
    pairs = close_pairs(pictures, near.distance_max, near.mirrored)
    paths, pixels = pictures["image_path"].to_numpy(object), pictures["pixels"].to_numpy(object)
    pairs = pairs.assign(similarity=_similarity(pairs, paths, embed))
    least = near.similarity_min
    if least is None and len(pairs):
        least = similarity_of_copies(paths, embed)
    if least is not None:
        pairs = pairs[pairs["similarity"] >= least]
    first, second = pixels[pairs["first"]], pixels[pairs["second"]]
    found = pairs[["distance", "similarity"]].assign(copy="near")
    return pd.concat(
        [
            found.assign(pixels=first, other_pixels=second),
            found.assign(pixels=second, other_pixels=first),
        ]
    )


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
