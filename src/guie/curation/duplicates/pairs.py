"""Pairs of pictures with similar perceptual hashes: exact, up to millions of hashes.

Shapes: H hashes, P pairs.
"""

from collections.abc import Iterator, Sequence
from math import comb, isqrt

import faiss
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from guie.evaluation.knn import search_threads
from guie.rows.fingerprints import hash_bytes

# Pairs that an image proposes at most, so that their number is linear in the images; tests/bench/README.md
# has the recall of planted copies with fewer.
NEAREST = 16
BITS = 64
BLOCK = 1024  # hashes searched at once
EXACT = 3_000_000  # hashes up to which the search is exact: a million images have no more
PROBES = 16  # cells compared with a hash
SAMPLED, ROUNDS = 64, 10  # hashes of a cell in the sample that k-means takes, and its iterations
MANY = 2**23  # pairs after which only the nearest are kept
WORDS = 4  # of a hash, for tables of candidates
WORD_BITS = BITS // WORDS
LOOKUP = 128  # comparisons by the flat index that take as long as a look-up in a table, measured
ONES = np.array([number.bit_count() for number in range(2**WORD_BITS)], np.uint8)

Matches = tuple[np.ndarray, np.ndarray, np.ndarray]


def close_pairs(
    prints: pd.DataFrame, radius_bits: int, mirrored: bool, part: tuple[int, int] = (0, 1)
) -> pd.DataFrame:
    """Pair each row with its nearest others: a hash of one is within `radius_bits` of a hash of the other.

    A row proposes at most NEAREST pairs; of others as near, the first ones. So many images of one hash are
    paired with the first of them. The centre of an image is compared with the whole of the other, to find
    crops. With `mirrored`, images are also compared with the mirror images of others.

    Args:
        prints: the columns of `Hashes`; an empty hash matches nothing.
        part: n and m, to pair only every m-th row, from row n on.

    Returns columns first < second (positions in `prints`) and distance in bits, sorted.
    """
    plain, turned = ["whole", "content"], ["mirrored"] if mirrored else []
    ways = [
        (plain + turned, [*plain, "centre"]),
        (["centre", *(plain if mirrored else [])], plain + turned),
    ]
    count, codes = len(prints), [np.empty(0, np.int64)]
    prints = prints.reset_index(drop=True)
    for names, other_names in ways:
        own = _hashes_of(prints.iloc[part[0] :: part[1]], names)
        # One more than NEAREST, because the image itself may be among them
        others = _hashes_of(prints, other_names).groupby("hash").head(NEAREST + 1)
        image, other_image = own["image"].to_numpy(), others["image"].to_numpy()
        for row, other_row, distance in near_hashes(_bytes(own), _bytes(others), radius_bits):
            one, other = image[row], other_image[other_row]
            # One number each, so that sorting finds the nearest others of each image
            codes.append(((one * (BITS + 1) + distance) * count + other)[one != other])
            if sum(map(len, codes)) > 2 * len(codes[0]) + MANY:
                codes = [_nearest(codes, count)]
    rest, other = np.divmod(_nearest(codes, count), max(count, 1))
    one, distance = np.divmod(rest, BITS + 1)
    ends = {"first": np.minimum(one, other), "second": np.maximum(one, other)}
    pairs = pd.DataFrame({**ends, "distance": distance})
    return pairs.drop_duplicates().sort_values(["first", "second"], ignore_index=True)


def _hashes_of(prints: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the hashes in these columns, as uint64, and the image of each, sorted by both."""
    texts = prints[list(names)].stack().droplevel(1)  # indexed by image
    texts = texts[texts != ""]
    hashes = hash_bytes(texts).view(np.uint64)[:, 0]
    table = pd.DataFrame({"hash": hashes, "image": texts.index.to_numpy(np.int64)})
    return table.drop_duplicates().sort_values(["hash", "image"])


def _bytes(hashes: pd.DataFrame) -> np.ndarray:
    return np.ascontiguousarray(hashes["hash"].to_numpy())[:, None].view(np.uint8)


def _nearest(codes: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Return the codes of the NEAREST others of each image, each once; of others as near, the first."""
    every = np.unique(np.concatenate(codes))
    image, other = every // ((BITS + 1) * max(count, 1)), every % max(count, 1)
    _, first = np.unique(image * count + other, return_index=True)
    first.sort()
    image = image[first]
    return every[first[np.arange(len(image)) - np.searchsorted(image, image) < NEAREST]]


def near_hashes(queries: np.ndarray, known: np.ndarray, radius_bits: int) -> Iterator[Matches]:
    """Yield, by block, positions in `queries` and `known` of hashes within the radius, and the distance.

    Each pair is yielded once, in no particular order. Few hashes are all compared. Among many, tables of
    words propose candidates, which misses none (multi-index hashing; Norouzi et al. 2012). Among more than
    EXACT, each hash is compared with those of the nearest k-means cells: this misses a few. Both arrays are
    (H, 8) uint8, in contiguous memory.
    """
    limits = word_limits(radius_bits)
    lookups = sum(comb(WORD_BITS, flips) for limit in limits for flips in range(limit + 1))
    if len(known) > EXACT or len(known) < LOOKUP * lookups:
        index = _cells(known) if len(known) > EXACT else faiss.IndexBinaryFlat(BITS)
        index.add(known)
        yield from _searched(index, queries, radius_bits, "all")
        return
    words = queries.view(np.uint16), known.view(np.uint16)
    for word, limit in enumerate(limits):
        if limit < 0:
            continue
        # In the order of the word, consecutive queries look up the same few entries, which stay in the
        # processor's caches. faiss' IndexBinaryMultiHash has no such order, and is slower than comparing all.
        order, known_order = (np.argsort(side[:, word], kind="stable") for side in words)
        # The table takes the first bits
        first = np.roll(np.arange(BITS // 8), -word * WORD_BITS // 8)
        index = faiss.IndexBinaryHash(BITS, WORD_BITS)
        index.nflip = limit
        index.add(np.ascontiguousarray(known[known_order][:, first]))
        turned = np.ascontiguousarray(queries[order][:, first])
        for found, near, distance in _searched(index, turned, radius_bits, f"word {word + 1}"):
            rows, others = order[found], known_order[near]
            earlier = ONES[words[0][rows, :word] ^ words[1][others, :word]] <= limits[:word]
            new = ~earlier.any(axis=1)
            yield rows[new], others[new], distance[new]


def word_limits(radius_bits: int) -> list[int]:
    """Return for each word of a hash the number of differing bits up to which pairs are candidates.

    If all WORDS words of a pair exceeded their limits, it would differ in at least sum(limits) + WORDS =
    radius_bits + 1 bits, so each pair within the radius is a candidate of some word (the pigeonhole
    principle). A limit of -1 proposes none.
    """
    spare = radius_bits + 1 - WORDS
    return [(spare + word) // WORDS for word in range(WORDS)]


def _cells(known: np.ndarray) -> faiss.IndexBinary:
    """Return an index of k-means cells of hashes, as SemDeDup (Abbas et al. 2023) has of embeddings.

    With sqrt(H) cells, finding the cell of a hash and comparing it there take the same time.
    """
    cells = isqrt(len(known))
    index = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(BITS), BITS, cells)
    index.nprobe, index.cp.niter = PROBES, ROUNDS
    # Known hashes are sorted, so every n-th is a sample of all
    sample = np.ascontiguousarray(known[:: max(1, len(known) // (SAMPLED * cells))])
    with threadpool_limits(1):  # with more threads, sums have another order
        index.train(sample)
    return index


def _searched(
    index: faiss.IndexBinary, queries: np.ndarray, radius_bits: int, title: str
) -> Iterator[Matches]:
    """Yield positions in `queries` and in the index, and distances, by block."""
    title, starts = f"near-duplicates, {title}", range(0, len(queries), BLOCK)
    for start in tqdm(starts, title, unit="block", leave=False, disable=None):
        with search_threads():
            # faiss excludes the radius itself
            limits, distance, near = index.range_search(
                queries[start : start + BLOCK], radius_bits + 1
            )
        counts: np.ndarray = np.diff(limits.astype(np.int64))
        yield start + np.repeat(np.arange(len(counts)), counts), near, distance.astype(np.int64)
