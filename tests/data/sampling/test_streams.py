"""Streams: how often an image comes, with which others, and any part of a stream at once; also of shards."""

from collections import Counter
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from guie.data.sampling.streams import ClassStream, ShardStream, Stream, Walk, WeightedStream

WALKS = [(10, 1), (10, 3), (12, 4), (7, 4), (5, 8), (1, 4)]


@pytest.mark.parametrize(("size", "group"), WALKS)
def test_a_walk_is_even_and_its_groups_are_of_different_items(size: int, group: int) -> None:
    walk = Walk(size, (0,), group)
    visits, items = walk.take(0, 20 * walk.chunk)
    for members in items.reshape(-1, group):
        counts = np.bincount(members, minlength=size)
        assert counts.max() - counts.min() <= 1
        assert counts.max() == 1 or size < group
    for end in range(walk.chunk, len(items) + 1, walk.chunk):
        counts = np.bincount(items[:end], minlength=size)
        assert counts.max() - counts.min() <= 1
    for item in range(size):  # visits are numbered without a gap, if not in order
        numbers = visits[items == item]
        assert sorted(numbers) == list(range(len(numbers)))


@pytest.mark.parametrize(("size", "group"), WALKS)
def test_any_stretch_of_a_walk_is_what_walking_there_gives(size: int, group: int) -> None:
    visits, items = Walk(size, (0,), group).take(0, 200)
    for start, count in ((150, 50), (0, 7), (13, 60)):
        there = Walk(size, (0,), group).take(start, count)
        np.testing.assert_array_equal(there, (visits[start : start + count], items[start:][:count]))
    assert (Walk(size, (1,), group).take(0, 200)[1] != items).any() or size == 1


def test_any_two_items_of_a_walk_meet_and_none_are_neighbours_for_life() -> None:
    met = Counter()
    for seed in range(60):
        groups = Walk(7, (seed,), 4).take(0, 4 * 7)[1].reshape(-1, 4)
        pairs = Counter(pair for group in groups for pair in combinations(sorted(group), 2))
        assert len(pairs) == 21
        met += pairs
    assert max(met.values()) < 1.5 * min(met.values())


def test_weights_hold_in_every_pass_and_exactly_on_average() -> None:
    """And draws are counted within a pass; those before are the expected number."""
    rows, passes = np.arange(100, 140), 2000
    weight = np.random.default_rng(0).uniform(0.1, 5, size=40)
    length = round(weight.sum())
    expected = weight * length / weight.sum()
    visits, taken = WeightedStream(rows, weight, (0,)).draw(0, passes * length)
    for number, one in enumerate(taken.reshape(passes, length)[:50]):
        for row in range(40):
            own = np.sort(visits.reshape(passes, length)[number][one == 100 + row])
            np.testing.assert_array_equal(own, round(number * expected[row]) + np.arange(len(own)))
    counts = np.stack(
        [np.bincount(one - 100, minlength=40) for one in taken.reshape(passes, length)]
    )
    assert ((counts == np.floor(expected)) | (counts == np.ceil(expected))).all()
    # Each pass rounds up or down: a deviation of at most 0.5 / sqrt(2000) in the mean.
    assert np.abs(counts.mean(axis=0) - expected).max() < 5 * 0.5 / np.sqrt(passes)
    block = counts[:, 10:25].sum(axis=1)  # neighbours, as the images of a class
    assert set(block) <= {int(expected[10:25].sum()), int(expected[10:25].sum()) + 1}
    late = WeightedStream(rows, weight, (0,)).draw(333, 600)
    np.testing.assert_array_equal(late, (visits[333:933], taken[333:933]))
    ones = WeightedStream(rows, np.ones(40), (0,)).draw(0, 400)
    np.testing.assert_array_equal(ones, Stream(rows, (0,)).draw(0, 400))


SIZES = [9, 4, 2, 1, 6, 30, 5]  # images of each class
CLASS_OF_ROW = np.random.default_rng(0).permutation(np.repeat(np.arange(len(SIZES)), SIZES))


def class_stream(classes: int = 3, images: int = 4) -> ClassStream:
    rows = np.arange(len(CLASS_OF_ROW))
    return ClassStream(rows, CLASS_OF_ROW, (0,), classes=classes, images=images)


def test_classes_come_equally_often_and_their_images_too() -> None:
    steps = 7 * 50  # classes are visited 3 a step, so each 150 times
    visits, rows = class_stream().draw(0, steps * 12)
    labels = CLASS_OF_ROW[rows.reshape(-1, 4)[:, 0]]
    assert set(np.bincount(labels)) == {150}
    images = np.bincount(rows, minlength=len(CLASS_OF_ROW))
    for label in range(len(SIZES)):
        own = images[CLASS_OF_ROW == label]
        assert own.max() - own.min() <= 2 and own.sum() == 600
    for row in np.unique(rows):  # numbered without a gap, if not in order: tuples are shuffled
        own = visits[rows == row]
        assert abs(np.sort(own) - np.arange(len(own))).max() <= 1
    for tuple_rows, label in zip(rows.reshape(-1, 4), labels, strict=True):
        assert (CLASS_OF_ROW[tuple_rows] == label).all()
        counts = Counter(tuple_rows.tolist()).values()
        assert len(counts) == min(4, SIZES[label]) and max(counts) - min(counts) <= 1
    few = class_stream(classes=16).draw(0, 64)[1]  # of seven classes
    assert set(np.bincount(CLASS_OF_ROW[few.reshape(16, 4)[:, 0]])) == {2, 3}


SHARDS = np.repeat(np.random.default_rng(0).permutation(9), [5, 1, 8, 3, 3, 7, 2, 6, 5])
ROWS = len(SHARDS)


@pytest.mark.parametrize("window", [1, 3, 4, 9, 100])
def test_a_pass_has_every_row_once_window_by_window(window: int) -> None:
    stream = ShardStream(SHARDS, window, (5,))
    for number in range(3):
        visits, rows = stream.draw(number * ROWS, ROWS)
        assert sorted(rows) == list(range(ROWS)) and set(visits) == {number}
        begun = pd.unique(SHARDS[rows])  # shards in the order in which they occur
        for first in range(0, len(begun), window):
            inside = np.flatnonzero(np.isin(SHARDS[rows], begun[first : first + window]))
            assert inside[-1] - inside[0] == len(inside) - 1  # nothing else in between


def test_any_range_is_part_of_the_whole() -> None:
    whole = ShardStream(SHARDS, 2, (7,)).draw(0, 300)
    for start in (0, 3, 17, 40, 41, 200):
        part = ShardStream(SHARDS, 2, (7,)).draw(start, 50)
        np.testing.assert_array_equal(part, [one[start : start + 50] for one in whole])
    assert (whole[1][:ROWS] != whole[1][ROWS : 2 * ROWS]).any()
    assert (whole[1] != ShardStream(SHARDS, 2, (8,)).draw(0, 300)[1]).any()
    runs = 1 + np.count_nonzero(np.diff(SHARDS[ShardStream(SHARDS, 9, (0,)).draw(0, ROWS)[1]]))
    assert runs > 2 * len(set(SHARDS))  # rows of a window are shuffled together
