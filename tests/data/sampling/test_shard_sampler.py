"""The sampler `shards`: few shards at a time, every image once, the same for any number of processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from guie.base.errors import UserError
from guie.data.sampling import RankBatches, Sampler
from guie.data.sampling.streams import ShardStream

SHARDS = np.repeat(np.random.default_rng(0).permutation(9), [5, 1, 8, 3, 3, 7, 2, 6, 5])
ROWS = len(SHARDS)
NAMES = pd.Series([f"shard-{number}.tar" for number in SHARDS])
DOMAINS = pd.Series(["art", "toys"] * (ROWS // 2))


def sampler(window: int = 3, seed: int = 0, batch_size: int = 8) -> Sampler:
    return Sampler(
        DOMAINS, {"name": "shards", "window": window}, batch_size, (seed,), shard_of_row=NAMES
    )


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


def test_passes_and_seeds_differ() -> None:
    drawn = {
        tuple(ShardStream(SHARDS, 3, (seed,)).take(start, ROWS))
        for seed in (0, 1)
        for start in (0, ROWS)
    }
    assert len(drawn) == 4


def test_rows_of_a_window_are_shuffled_together() -> None:
    rows = ShardStream(SHARDS, 9, (0,)).take(0, ROWS)
    runs = 1 + np.count_nonzero(np.diff(SHARDS[rows]))
    assert runs > 2 * len(set(SHARDS))


@pytest.mark.parametrize("start", [0, 3, 17, 40, 41, 200])
def test_any_range_is_part_of_the_whole(start: int) -> None:
    whole = ShardStream(SHARDS, 2, (7,)).draw(0, 300)
    part = ShardStream(SHARDS, 2, (7,)).draw(start, 50)
    for one, other in zip(whole, part, strict=True):
        assert (one[start : start + 50] == other).all()


def test_batches_resume_with_another_number_of_processes() -> None:
    steps = 3 * sampler().steps_per_epoch
    whole = [sampler().batch(step) for step in range(steps)]
    for ranks, begin in ((1, 0), (2, 7), (4, 11), (8, 2)):
        fresh = sampler()  # knows nothing of earlier steps
        parts = [list(RankBatches(fresh, begin, steps, rank, ranks)) for rank in range(ranks)]
        for step, batches in enumerate(zip(*parts, strict=True), start=begin):
            drawn = sorted((position, row) for batch in batches for _, position, row in batch)
            assert [row for _, row in drawn] == whole[step].tolist()


def test_an_epoch_is_as_long_as_that_of_mixed() -> None:
    mixed = Sampler(DOMAINS, "mixed", 8, (0,))
    assert sampler().steps_per_epoch == mixed.steps_per_epoch
    assert sampler().left_out == 0 and not sampler().learns and sampler().state() == {}


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(UserError, match="needs an index of shards as data.manifest"):
        Sampler(DOMAINS, {"name": "shards"}, 8, (0,))
    weights = pd.Series(np.ones(ROWS))
    with pytest.raises(UserError, match="the manifest has a weight column"):
        Sampler(DOMAINS, {"name": "shards"}, 8, (0,), shard_of_row=NAMES, weight_of_row=weights)


def test_shards_that_a_stage_leaves_out_do_not_count(tmp_path: Path) -> None:
    """A categorical column has categories without rows, where a stage takes some domains only."""
    names = NAMES.astype("category")[:12]
    drawn = Sampler(DOMAINS[:12], {"name": "shards"}, 4, (0,), shard_of_row=names)
    assert sorted(np.concatenate([drawn.batch(step) for step in range(3)])) == list(range(12))
