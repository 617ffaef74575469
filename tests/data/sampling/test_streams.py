"""Streams: how often an image comes, with which others, and any part of a stream at once; also of shards."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from guie.data.sampling import Sampler
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


def test_passes_are_shuffled_without_preference() -> None:
    # 4 items, 4,000 passes: a place expects each item 1,000 times, with a deviation of 27.
    _, items = Walk(4, (0,)).take(0, 16_000)
    places = np.stack([np.bincount(column) for column in items.reshape(-1, 4).T])
    assert np.abs(places - 1000).max() < 5 * 27.4


def test_weights_hold_in_every_pass_and_exactly_on_average() -> None:
    rows, passes = np.arange(100, 140), 2000
    weight = np.random.default_rng(0).uniform(0.1, 5, size=40)
    length = round(weight.sum())
    expected = weight * length / weight.sum()
    taken = WeightedStream(rows, weight, (0,)).draw(0, passes * length)[1].reshape(passes, length)
    counts = np.stack([np.bincount(one - 100, minlength=40) for one in taken])
    assert ((counts == np.floor(expected)) | (counts == np.ceil(expected))).all()
    # Each pass rounds up or down: a deviation of at most 0.5 / sqrt(2000) in the mean.
    assert np.abs(counts.mean(axis=0) - expected).max() < 5 * 0.5 / np.sqrt(passes)
    block = counts[:, 10:25].sum(axis=1)  # neighbours, as the images of a class
    assert set(block) <= {int(expected[10:25].sum()), int(expected[10:25].sum()) + 1}


def test_weights_a_stretch_at_once_and_equal_weights() -> None:
    weight = np.random.default_rng(0).uniform(0.1, 5, size=40)
    whole = WeightedStream(np.arange(40), weight, (0,)).draw(0, 400)[1]
    late = WeightedStream(np.arange(40), weight, (0,)).draw(333, 60)[1]
    np.testing.assert_array_equal(late, whole[333:393])
    plain = Stream(np.arange(40), (0,)).draw(0, 400)[1]
    ones = WeightedStream(np.arange(40), np.ones(40), (0,)).draw(0, 400)[1]
    np.testing.assert_array_equal(ones, plain)
    twice = WeightedStream(np.arange(40), np.full(40, 2.0), (0,)).draw(0, 80)[1]
    assert (np.bincount(twice) == 2).all()


def test_a_weighted_stream_counts_draws_within_a_pass_and_expects_those_before() -> None:
    weight = np.random.default_rng(0).uniform(0.1, 5, size=40)
    length, seen = round(weight.sum()), np.zeros(40, int)
    expected = weight * length / weight.sum()
    stream = WeightedStream(np.arange(40), weight, (0,))
    for number in range(50):
        visits, rows = stream.draw(number * length, length)
        for row in range(40):
            own = np.sort(visits[rows == row])
            np.testing.assert_array_equal(own, round(number * expected[row]) + np.arange(len(own)))
            seen[row] += len(own)
    assert np.abs(seen - 50 * expected).max() < 5 * 0.5 * np.sqrt(50)  # what is expected comes


def test_draws_of_a_row_are_counted() -> None:
    rows = np.arange(5, 45)
    ones = WeightedStream(rows, np.ones(40), (0,))
    for stream, apart in ((Stream(rows, (0,)), 0), (ones, 0), (class_stream(classes=7), 1)):
        visits, drawn = stream.draw(0, 28 * 40)
        for row in np.unique(drawn):  # without a gap, if not in order: tuples are shuffled
            own = visits[drawn == row]
            assert abs(np.sort(own) - np.arange(len(own))).max() <= apart


SIZES = [9, 4, 2, 1, 6, 30, 5]  # images of each class
CLASS_OF_ROW = np.random.default_rng(0).permutation(np.repeat(np.arange(len(SIZES)), SIZES))


def class_stream(classes: int = 3, images: int = 4) -> ClassStream:
    rows = np.arange(len(CLASS_OF_ROW))
    return ClassStream(rows, CLASS_OF_ROW, (0,), classes=classes, images=images)


def test_a_batch_is_of_different_classes_of_different_images() -> None:
    stream = class_stream()
    for step in range(200):
        tuples = stream.draw(step * 12, 12)[1].reshape(3, 4)
        labels = CLASS_OF_ROW[tuples]
        assert (labels == labels[:, :1]).all()
        assert len(set(labels[:, 0])) == 3
        for label, rows in zip(labels[:, 0], tuples, strict=True):
            counts = Counter(rows.tolist()).values()
            assert len(counts) == min(4, SIZES[label]) and max(counts) - min(counts) <= 1


def test_classes_come_equally_often_and_their_images_too() -> None:
    steps = 7 * 50  # classes are visited 3 a step, so each 150 times
    rows = class_stream().draw(0, steps * 12)[1]
    labels = CLASS_OF_ROW[rows.reshape(-1, 4)[:, 0]]
    assert set(np.bincount(labels)) == {150}
    images = np.bincount(rows, minlength=len(CLASS_OF_ROW))
    for label in range(len(SIZES)):
        own = images[CLASS_OF_ROW == label]
        assert own.max() - own.min() <= 2 and own.sum() == 600


def test_fewer_classes_than_wanted_come_equally_often() -> None:
    rows = class_stream(classes=16).draw(0, 64)[1]
    labels = CLASS_OF_ROW[rows.reshape(16, 4)[:, 0]]
    assert set(np.bincount(labels)) == {2, 3}
    images = np.bincount(rows, minlength=len(CLASS_OF_ROW))
    assert images[CLASS_OF_ROW == 5].max() == 1  # 30 images: none is needed twice


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


def test_shards_that_a_stage_leaves_out_do_not_count() -> None:
    """A categorical column has categories without rows, where a stage takes some domains only."""
    names = pd.Series(SHARDS.astype(str)).astype("category")[:12]
    drawn = Sampler(pd.Series(["art"] * 12), {"name": "shards"}, 4, (0,), shard_of_row=names)
    assert sorted(np.concatenate([drawn.draw(step)[1] for step in range(3)])) == list(range(12))
