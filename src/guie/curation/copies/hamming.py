"""Pairs of images whose perceptual hashes differ by a few bits, out of millions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import faiss
import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.data.looks.hashes import hash_bytes

BITS = 64
BLOCK = 4096  # hashes searched at once
# Of the many images that share one hash, the first so many stand for all: N copies of one
# placeholder must not make N squared pairs.
ANCHORS = 32


class Owners(NamedTuple):
    """H different hashes, and by hash the positions of the images that have it, in order."""

    hashes: np.ndarray  # (H, 8) uint8
    images: np.ndarray  # of the first hash, then of the second, and so on
    starts: np.ndarray  # (H,) where those of each hash begin
    counts: np.ndarray  # (H,) how many they are


def close_pairs(prints: pd.DataFrame, radius_bits: int, mirrored: bool) -> pd.DataFrame:
    """Pairs of rows with a hash of one within `radius_bits` of a hash of the other.

    The centre of one picture is compared with the whole of the other: what a crop leaves. Every
    hash is compared with every other by faiss' flat index: exact, and at 64 bits as fast as any.
    Of the images of one hash all are paired with the first 32 of each hash that is near.

    Args:
        prints: the columns of `Hashes`; no hash is near an empty one.
        mirrored: also compare each with the others' mirror images.

    Returns:
        Columns first < second (positions in `prints`) and distance in bits, sorted.
    """
    asked = _owners(prints, ["whole", "content", *(["mirrored"] if mirrored else [])])
    known = _owners(prints, ["whole", "content", "centre"])
    known = known._replace(counts=np.minimum(known.counts, ANCHORS))
    # A pair and its distance are one number, so that sorting keeps the least distance of a pair.
    found = [np.empty(0, np.int64)]
    for names, others, distance in _search(asked.hashes, known.hashes, radius_bits):
        first, second, hit = _images(asked, names, known, others)
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
    """Where a value is another than the one before it."""
    return np.append(np.ones(min(len(values), 1), bool), values[1:] != values[:-1])


def _search(
    asked: np.ndarray, known: np.ndarray, radius_bits: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """By block: positions in `asked` and in `known` of hashes near each other, their distance."""
    index = faiss.IndexBinaryFlat(BITS)
    index.add(known)
    blocks = range(0, len(asked), BLOCK)
    for start in tqdm(blocks, desc="near-duplicates", unit="block", leave=False, disable=None):
        # faiss finds what is nearer than the radius
        limits, distance, near = index.range_search(asked[start : start + BLOCK], radius_bits + 1)
        counts: np.ndarray = np.diff(limits.astype(np.int64))
        yield start + np.repeat(np.arange(len(counts)), counts), near, distance.astype(np.int64)


def _images(
    asked: Owners, names: np.ndarray, known: Owners, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every image of each hash in `names` with every one of its fellow in `others`; which hash."""
    counts = asked.counts[names] * known.counts[others]
    hit = np.repeat(np.arange(len(names)), counts)
    number = np.arange(len(hit)) - np.repeat(np.cumsum(counts) - counts, counts)
    first, second = np.divmod(number, known.counts[others][hit])
    return (
        asked.images[asked.starts[names][hit] + first],
        known.images[known.starts[others][hit] + second],
        hit,
    )
