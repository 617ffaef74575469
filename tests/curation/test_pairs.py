"""Pairs of near hashes: tables of words find exactly what comparing all finds."""

from __future__ import annotations

from itertools import product

import faiss
import numpy as np
import pytest

from guie.curation.duplicates import pairs
from guie.curation.duplicates.pairs import near_hashes, word_limits

# Of 64 bits, as NearConfig.distance_max; tables of 0 to 2 and 18 to 20 bits are the smallest and largest
RADII = [0, 1, 2, 3, 7, 10, 12, 20]


def as_bytes(hashes: list[int] | np.ndarray) -> np.ndarray:
    return np.asarray(hashes, np.uint64)[:, None].view(np.uint8)


def clustered(count: int, seed: int) -> np.ndarray:
    """Distinct hashes around a few centres, so that each radius has pairs."""
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**64, 40, dtype=np.uint64)[rng.integers(0, 40, count)]
    for number in range(count):
        for bit in rng.choice(64, rng.integers(0, 14), replace=False):
            hashes[number] ^= np.uint64(1 << int(bit))
    return as_bytes(np.unique(hashes))


def found(queries: np.ndarray, known: np.ndarray, radius_bits: int) -> list[tuple[int, int, int]]:
    blocks = [np.column_stack(block) for block in near_hashes(queries, known, radius_bits)]
    return sorted(map(tuple, np.concatenate(blocks).tolist()))


@pytest.fixture
def by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "LOOKUP", 0)
    monkeypatch.setattr(pairs, "CANDIDATE", 0)
    monkeypatch.setattr(pairs, "BLOCK", 700)  # several blocks, the last one shorter


@pytest.mark.parametrize("radius_bits", RADII)
def test_words_find_each_pair_once(radius_bits: int, by_words, monkeypatch) -> None:
    queries, known = (
        clustered(1500, 0),
        np.concatenate([clustered(1500, 0)[::3], clustered(900, 1)]),
    )
    ours = found(queries, known, radius_bits)
    monkeypatch.setattr(pairs, "LOOKUP", 10**9)
    assert ours == found(queries, known, radius_bits) and len(ours) >= 400


@pytest.mark.parametrize("radius_bits", RADII)
def test_no_spread_of_the_differing_bits_is_missed(radius_bits: int, by_words) -> None:
    """As many bits as the radius, in every way to share them among the four words."""
    shares = [s for s in product(range(17), repeat=4) if sum(s) == radius_bits]
    masks = [sum((2**bits - 1) << 16 * part for part, bits in enumerate(s)) for s in shares]
    centre = 0x0123456789ABCDEF
    ours = found(as_bytes([mask ^ centre for mask in masks]), as_bytes([centre]), radius_bits)
    assert ours == [(number, 0, radius_bits) for number in range(len(masks))]


def test_the_limits_of_the_words_leave_no_room() -> None:
    assert word_limits(12) == [2, 2, 2, 3] and word_limits(0) == [-1, -1, -1, 0]
    for radius_bits in range(65):
        fewest = sum(max(limit, -1) + 1 for limit in word_limits(radius_bits))
        assert fewest == radius_bits + 1, "bits that differ where every word exceeds its limit"


@pytest.mark.parametrize(
    "radius_bits, count, way",
    [
        (10, 50_000, "IndexBinaryFlat"),
        (10, 70_000, "_by_words"),
        (12, 70_000, "IndexBinaryFlat"),
        (12, 200_000, "_by_words"),
        (12, 3_000_000, "_by_words"),
        (12, 3_000_001, "_in_cells"),
        (20, 3_000_000, "IndexBinaryFlat"),
    ],
)
def test_the_number_of_hashes_decides_how_they_are_searched(radius_bits, count, way, monkeypatch):
    class Known(np.ndarray):
        __len__ = lambda self: count  # noqa: E731

    class Taken(Exception):
        pass

    def take(name: str) -> None:
        raise Taken(name)

    known = np.empty((0, 8), np.uint8).view(Known)
    for name in ("_by_words", "_in_cells"):
        monkeypatch.setattr(pairs, name, lambda *_, name=name: take(name))
    monkeypatch.setattr(pairs.faiss, "IndexBinaryFlat", lambda bits: take("IndexBinaryFlat"))
    with pytest.raises(Taken, match=way):
        list(near_hashes(known, known, radius_bits))


def test_cells_find_nearly_every_pair_whatever_the_number_of_threads(monkeypatch) -> None:
    queries, known = clustered(1500, 0), clustered(4000, 1)
    every = found(np.concatenate([queries, known]), known, 12)
    monkeypatch.setattr(pairs, "EXACT", 0)
    threads = faiss.omp_get_max_threads()
    ours = []
    for count in (1, 2):
        faiss.omp_set_num_threads(count)
        ours.append(found(np.concatenate([queries, known]), known, 12))
    faiss.omp_set_num_threads(threads)
    assert ours[0] == ours[1] and set(ours[0]) <= set(every)
    assert len(ours[0]) > 0.97 * len(every) > 5000
