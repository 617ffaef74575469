"""Pairs of images whose perceptual hashes differ by a few bits, out of millions."""

from __future__ import annotations

import faiss
import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.curation.phash import hash_bytes

BLOCK = 4096  # hashes searched at once
# Of the many images that share one hash, the first so many stand for all: N copies of one
# placeholder must not make N squared pairs.
ANCHORS = 32


def close_pairs(prints: pd.DataFrame, radius_bits: int, mirrored: bool) -> pd.DataFrame:
    """Pairs of rows with a hash of one within `radius_bits` of a hash of the other.

    The centre of one picture is compared with the whole of the other: what a crop leaves. Every
    hash is compared with every other by faiss' flat index: exact, and at 64 bits as fast as any.

    Args:
        prints: the columns of `Hashes`; no hash is near an empty one.
        mirrored: also compare each with the others' mirror images.

    Returns:
        Columns first < second (positions in `prints`) and distance in bits, sorted.
    """
    asked = _owners(prints[["whole", "content", *(["mirrored"] if mirrored else [])]])
    known = _owners(prints[["whole", "content", "centre"]])
    known = known[known.groupby("hash").cumcount() < ANCHORS]
    names, hashes = asked["hash"].unique(), known["hash"].unique()
    pairs = _pairs(_search(names, hashes, radius_bits), asked, known)
    return pairs.groupby(["first", "second"], as_index=False)["distance"].min()


def _owners(hashes: pd.DataFrame) -> pd.DataFrame:
    """Columns owner (position) and hash, each pair once, in the order of the owners."""
    columns = [
        pd.DataFrame({"owner": np.arange(len(hashes)), "hash": hashes[name].to_numpy()})
        for name in hashes
    ]
    owners = pd.concat(columns).drop_duplicates()
    return owners[owners["hash"] != ""].sort_values(["owner", "hash"], ignore_index=True)


def _search(names: np.ndarray, hashes: np.ndarray, radius_bits: int) -> pd.DataFrame:
    """Columns hash, other, distance: which `hashes` are near each of `names`."""
    index = faiss.IndexBinaryFlat(64)
    index.add(hash_bytes(hashes))
    found = []
    blocks = range(0, len(names), BLOCK)
    for start in tqdm(blocks, desc="near-duplicates", unit="block", leave=False, disable=None):
        block = names[start : start + BLOCK]
        # faiss finds what is nearer than the radius
        limits, distance, near = index.range_search(hash_bytes(block), radius_bits + 1)
        name = np.repeat(block, np.diff(limits.astype(np.int64)))
        found.append(pd.DataFrame({"hash": name, "other": hashes[near], "distance": distance}))
    return pd.concat(found) if found else pd.DataFrame(columns=["hash", "other", "distance"])


def _pairs(found: pd.DataFrame, asked: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """From hashes that are near each other to the images that have them."""
    pairs = found.merge(asked, on="hash").merge(
        known.rename(columns={"hash": "other"}), on="other", suffixes=("", "_of_other")
    )
    owners = pairs[["owner", "owner_of_other"]].to_numpy(np.int64)
    pairs = pd.DataFrame(np.sort(owners, axis=1), columns=["first", "second"]).assign(
        distance=pairs["distance"].to_numpy(np.int64)
    )
    return pairs[pairs["first"] < pairs["second"]]
