"""Find all pairs of 64-bit hashes within a Hamming distance, exactly.

Shapes: P pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import comb

import faiss
import numpy as np
from tqdm import tqdm

from guie.evaluation.knn import search_threads

BITS = 64
BLOCK = 4096  # hashes searched at once
PARTS = 4
PART_BITS = BITS // PARTS
# Costs in units of one comparison by the flat index, rounded up from 63 and 5 as measured on random
# hashes: the parts of real hashes are less even. `tests/bench/curation.py hashes` prints times.
LOOKUP, CANDIDATE = 128, 8
ONES = np.array([number.bit_count() for number in range(2**PART_BITS)], np.uint8)

Matches = tuple[np.ndarray, np.ndarray, np.ndarray]


def near_hashes(queries: np.ndarray, known: np.ndarray, radius_bits: int) -> Iterator[Matches]:
    """Yield, by block, positions in `queries` and `known` of hashes within the radius, and the distance.

    Each pair is yielded once, in no particular order. Few hashes are all compared. Among many, tables of
    parts of the hashes propose candidates: this misses none.

    Args:
        queries, known: (N, 8) uint8; distinct, in contiguous memory.
    """
    limits = part_limits(radius_bits)
    lookups = sum(comb(PART_BITS, flips) for limit in limits for flips in range(limit + 1))
    if len(known) > lookups * (LOOKUP + CANDIDATE * len(known) / 2**PART_BITS):
        yield from _by_parts(queries, known, radius_bits, limits)
    else:
        yield from _by_comparing(queries, known, radius_bits)


def part_limits(radius_bits: int) -> list[int]:
    """Return for each part of a hash the number of differing bits up to which pairs are candidates.

    If all PARTS parts of a pair exceeded their limits, it would differ in at least sum(limits) + PARTS =
    radius_bits + 1 bits, so each pair within the radius is a candidate of some part (the pigeonhole
    principle). A limit of -1 proposes none.
    """
    spare = radius_bits + 1 - PARTS
    return [(spare + part) // PARTS for part in range(PARTS)]


def _by_comparing(queries: np.ndarray, known: np.ndarray, radius_bits: int) -> Iterator[Matches]:
    index = faiss.IndexBinaryFlat(BITS)
    index.add(known)
    for start in _blocks(len(queries), "near-duplicates"):
        names, others, distance = _within(index, queries[start : start + BLOCK], radius_bits)
        yield start + names, others, distance


def _by_parts(
    queries: np.ndarray, known: np.ndarray, radius_bits: int, limits: list[int]
) -> Iterator[Matches]:
    """Search a table of each part in turn (multi-index hashing; Norouzi et al. 2012, with faiss' tables).

    faiss' IndexBinaryMultiHash has the same tables, but no copy of the hashes in their order, and is slower
    than comparing all. In the order of the part, consecutive queries look up the same few entries, which
    stay in the processor's caches.
    """
    words = queries.view(np.uint16), known.view(np.uint16)
    for part, limit in enumerate(limits):
        if limit < 0:
            continue
        order, known_order = (np.argsort(side[:, part], kind="stable") for side in words)
        # The table takes the first bits
        first = np.roll(np.arange(BITS // 8), -part * PART_BITS // 8)
        index = faiss.IndexBinaryHash(BITS, PART_BITS)
        index.nflip = limit
        index.add(np.ascontiguousarray(known[known_order][:, first]))
        for start in _blocks(len(queries), f"near-duplicates, part {part + 1} of {PARTS}"):
            block = order[start : start + BLOCK]
            found = _within(index, np.ascontiguousarray(queries[block][:, first]), radius_bits)
            names, others, distance = block[found[0]], known_order[found[1]], found[2]
            earlier = ONES[words[0][names, :part] ^ words[1][others, :part]] <= limits[:part]
            new = ~earlier.any(axis=1)
            yield names[new], others[new], distance[new]


def _within(index: faiss.IndexBinary, queries: np.ndarray, radius_bits: int) -> Matches:
    with search_threads():
        # faiss excludes the radius itself
        limits, distance, near = index.range_search(queries, radius_bits + 1)
    counts: np.ndarray = np.diff(limits.astype(np.int64))
    return np.repeat(np.arange(len(counts)), counts), near, distance.astype(np.int64)


def _blocks(count: int, title: str) -> Iterable[int]:
    return tqdm(range(0, count, BLOCK), title, unit="block", leave=False, disable=None)
