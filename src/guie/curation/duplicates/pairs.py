"""Pairs of pictures with similar perceptual hashes, found exactly.

Shapes: H hashes, P pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb
from typing import NamedTuple

import faiss
import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.evaluation.knn import search_threads
from guie.rows.hashes import hash_bytes

# If many images share a hash, the first 32 represent all of them. Otherwise N copies of one
# placeholder would make N squared pairs.
ANCHORS = 32
BITS = 64
BLOCK = 4096  # hashes searched at once
WORDS = 4  # of a hash, for tables of candidates
WORD_BITS = BITS // WORDS
# Costs in units of one comparison by the flat index, rounded up from 63 and 5 as measured on random
# hashes: the words of real hashes are less even. `tests/bench/curation.py hashes` prints times.
LOOKUP, CANDIDATE = 128, 8
ONES = np.array([number.bit_count() for number in range(2**WORD_BITS)], np.uint8)

Matches = tuple[np.ndarray, np.ndarray, np.ndarray]


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
    for hashes, others, distance in near_hashes(queries.hashes, known.hashes, radius_bits):
        # All images of each hash with those of the other hash, numbered within each match
        counts = queries.counts[hashes] * known.counts[others]
        hit = np.repeat(np.arange(len(hashes)), counts)
        number = np.arange(len(hit)) - np.repeat(np.cumsum(counts) - counts, counts)
        one, two = np.divmod(number, known.counts[others][hit])
        one = queries.images[queries.starts[hashes][hit] + one]
        two = known.images[known.starts[others][hit] + two]
        low, high = np.minimum(one, two), np.maximum(one, two)
        code = (low * len(prints) + high) * (BITS + 1) + distance[hit]
        found.append(np.unique(code[low < high]))
    pair, distance = np.divmod(np.unique(np.concatenate(found)), BITS + 1)
    pair, least = np.unique(pair, return_index=True)
    first, second = np.divmod(pair, max(len(prints), 1))
    return pd.DataFrame({"first": first, "second": second, "distance": distance[least]})


def _owners(prints: pd.DataFrame, names: Sequence[str]) -> Owners:
    columns = [prints[name].to_numpy(object) for name in names]
    owners = [np.flatnonzero(column != "") for column in columns]
    filled = [hash_bytes(column[own]) for column, own in zip(columns, owners, strict=True)]
    both = pd.DataFrame(
        {"hash": np.concatenate(filled).view(np.uint64)[:, 0], "image": np.concatenate(owners)}
    )
    both = both.drop_duplicates().sort_values(["hash", "image"])
    hashes, starts, counts = np.unique(both["hash"], return_index=True, return_counts=True)
    return Owners(hashes[:, None].view(np.uint8), both["image"].to_numpy(), starts, counts)


def near_hashes(queries: np.ndarray, known: np.ndarray, radius_bits: int) -> Iterator[Matches]:
    """Yield, by block, positions in `queries` and `known` of hashes within the radius, and the distance.

    Each pair is yielded once, in no particular order. Few hashes are all compared. Among many, tables of
    words of the hashes propose candidates: this misses none.

    Args:
        queries, known: (H, 8) uint8; distinct, in contiguous memory.
    """
    limits = word_limits(radius_bits)
    lookups = sum(comb(WORD_BITS, flips) for limit in limits for flips in range(limit + 1))
    if len(known) > lookups * (LOOKUP + CANDIDATE * len(known) / 2**WORD_BITS):
        yield from _by_words(queries, known, radius_bits, limits)
    else:
        yield from _by_comparing(queries, known, radius_bits)


def word_limits(radius_bits: int) -> list[int]:
    """Return for each word of a hash the number of differing bits up to which pairs are candidates.

    If all WORDS words of a pair exceeded their limits, it would differ in at least sum(limits) + WORDS =
    radius_bits + 1 bits, so each pair within the radius is a candidate of some word (the pigeonhole
    principle). A limit of -1 proposes none.
    """
    spare = radius_bits + 1 - WORDS
    return [(spare + word) // WORDS for word in range(WORDS)]


def _by_comparing(queries: np.ndarray, known: np.ndarray, radius_bits: int) -> Iterator[Matches]:
    index = faiss.IndexBinaryFlat(BITS)
    index.add(known)
    blocks = range(0, len(queries), BLOCK)
    for start in tqdm(blocks, "near-duplicates", unit="block", leave=False, disable=None):
        hashes, others, distance = _within(index, queries[start : start + BLOCK], radius_bits)
        yield start + hashes, others, distance


def _by_words(
    queries: np.ndarray, known: np.ndarray, radius_bits: int, limits: list[int]
) -> Iterator[Matches]:
    """Search a table of each word in turn (multi-index hashing; Norouzi et al. 2012, with faiss' tables).

    faiss' IndexBinaryMultiHash has the same tables, but no copy of the hashes in their order, and is slower
    than comparing all. In the order of the word, consecutive queries look up the same few entries, which
    stay in the processor's caches.
    """
    words = queries.view(np.uint16), known.view(np.uint16)
    for word, limit in enumerate(limits):
        if limit < 0:
            continue
        order, known_order = (np.argsort(side[:, word], kind="stable") for side in words)
        # The table takes the first bits
        first = np.roll(np.arange(BITS // 8), -word * WORD_BITS // 8)
        index = faiss.IndexBinaryHash(BITS, WORD_BITS)
        index.nflip = limit
        index.add(np.ascontiguousarray(known[known_order][:, first]))
        blocks, title = (
            range(0, len(queries), BLOCK),
            f"near-duplicates, part {word + 1} of {WORDS}",
        )
        for start in tqdm(blocks, title, unit="block", leave=False, disable=None):
            block = order[start : start + BLOCK]
            found = _within(index, np.ascontiguousarray(queries[block][:, first]), radius_bits)
            hashes, others, distance = block[found[0]], known_order[found[1]], found[2]
            earlier = ONES[words[0][hashes, :word] ^ words[1][others, :word]] <= limits[:word]
            new = ~earlier.any(axis=1)
            yield hashes[new], others[new], distance[new]


def _within(index: faiss.IndexBinary, queries: np.ndarray, radius_bits: int) -> Matches:
    with search_threads():
        # faiss excludes the radius itself
        limits, distance, near = index.range_search(queries, radius_bits + 1)
    counts: np.ndarray = np.diff(limits.astype(np.int64))
    return np.repeat(np.arange(len(counts)), counts), near, distance.astype(np.int64)
