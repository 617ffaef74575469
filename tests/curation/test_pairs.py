"""Pairs of near hashes: tables of words find exactly what comparing all finds."""

from itertools import product

import faiss
import numpy as np
import pandas as pd
import pytest

from guie.curation.duplicates import pairs
from guie.curation.duplicates.pairs import NEAREST, close_pairs, near_hashes, word_limits
from guie.rows.fingerprints import Hashes

# Of 64 bits, as NearConfig.distance_max; tables of 0 to 2 and 18 to 20 bits are the smallest and largest
RADII = [0, 1, 2, 3, 7, 10, 12, 20]


def close_pairs_slowly(prints: pd.DataFrame, radius: int, mirrored: bool, nearest: int) -> dict:
    found, rows = {}, prints.to_dict("records")
    plain = ("whole", "content", *(["mirrored"] if mirrored else []))
    for (i, one), (j, other) in product(enumerate(rows), repeat=2):
        for a, b in product(plain, ("whole", "content", "centre")):
            if i != j and one[a] and other[b]:
                bits = (int(one[a], 16) ^ int(other[b], 16)).bit_count()
                if bits <= radius:
                    key = (min(i, j), max(i, j))
                    found[key] = min(bits, found.get(key, 64))
    proposed = {}
    for i in range(len(rows)):
        own = sorted((bits, sum(key) - i, key) for key, bits in found.items() if i in key)
        proposed |= {key: bits for bits, _, key in own[:nearest]}
    return proposed


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("radius", [0, 10])
@pytest.mark.parametrize("nearest", [2, 29])
@pytest.mark.parametrize("lookup", [0, pairs.LOOKUP], ids=["by words", "by comparing"])
def test_close_pairs_agree_with_their_definition(lookup, nearest, radius, mirrored, monkeypatch):
    sizes = {"BLOCK": 7, "MANY": 20, "LOOKUP": lookup, "NEAREST": nearest}
    for name, size in sizes.items():
        monkeypatch.setattr(pairs, name, size)
    rng = np.random.default_rng(radius)
    centres = rng.integers(0, 2**63, 6)

    def near() -> str:
        value = int(rng.choice(centres))
        for bit in rng.integers(0, 64, rng.integers(0, 9)):
            value ^= 1 << int(bit)
        return "" if rng.random() < 0.1 else f"{value:016x}"

    names = Hashes._fields
    prints = pd.DataFrame([[near() for _ in names] for _ in range(30)], columns=list(names))
    found = close_pairs(prints, radius, mirrored)
    ends = zip(found["first"], found["second"], strict=True)
    expected = close_pairs_slowly(prints, radius, mirrored, nearest)
    assert dict(zip(ends, found["distance"], strict=True)) == expected
    parts = pd.concat([close_pairs(prints, radius, mirrored, (n, 4)) for n in range(4)])
    parts = parts.drop_duplicates().sort_values(["first", "second"], ignore_index=True)
    pd.testing.assert_frame_equal(parts, found)


def test_many_images_of_one_hash_make_few_pairs_and_link_all():
    columns = list(Hashes._fields)
    prints = pd.DataFrame("f0f0f0f0f0f0f0f0", index=range(500), columns=columns)
    found = close_pairs(prints, 10, False)
    assert len(found) < 500 * NEAREST
    assert set(found.loc[found["first"] == 0, "second"]) == set(range(1, 500))
    assert close_pairs(pd.DataFrame("", index=range(2), columns=columns), 10, True).empty


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


@pytest.mark.parametrize("radius_bits", RADII)
def test_words_find_each_pair_once_and_miss_none(radius_bits: int, monkeypatch) -> None:
    monkeypatch.setattr(pairs, "BLOCK", 700)  # several blocks, the last one shorter
    queries = clustered(1500, 0)
    known = np.concatenate([queries[::3], queries[:9], clustered(900, 1)])
    every = found(queries, known, radius_bits)  # few are all compared
    monkeypatch.setattr(pairs, "LOOKUP", 0)
    assert found(queries, known, radius_bits) == every and len(every) >= 400
    # As many bits as the radius, in every way to share them among the four words
    shares = [s for s in product(range(17), repeat=4) if sum(s) == radius_bits]
    masks = [sum((2**bits - 1) << 16 * part for part, bits in enumerate(s)) for s in shares]
    centre = 0x0123456789ABCDEF
    ours = found(as_bytes([mask ^ centre for mask in masks]), as_bytes([centre]), radius_bits)
    assert ours == [(number, 0, radius_bits) for number in range(len(masks))]
    fewest = sum(max(limit, -1) + 1 for limit in word_limits(radius_bits))
    assert fewest == radius_bits + 1, "bits that differ where every word exceeds its limit"


def test_cells_find_nearly_every_pair_whatever_the_number_of_threads(monkeypatch) -> None:
    known = clustered(2000, 1)
    queries = np.concatenate([clustered(700, 0), known])
    made, cells = [], pairs._cells
    monkeypatch.setattr(pairs, "_cells", lambda own: made.append(own) or cells(own))
    monkeypatch.setattr(pairs, "EXACT", len(known))
    every = found(queries, known, 12)
    assert not made
    monkeypatch.setattr(pairs, "EXACT", len(known) - 1)
    threads = faiss.omp_get_max_threads()
    ours = []
    for count in (1, 2):
        faiss.omp_set_num_threads(count)
        ours.append(found(queries, known, 12))
    faiss.omp_set_num_threads(threads)
    assert len(made) == 2 and ours[0] == ours[1] and set(ours[0]) <= set(every)
    assert len(ours[0]) > 0.97 * len(every) > 2500
