"""A batch is a pure function of (seed, step); frequencies, coverage and ranks as stated."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from guie.sampling import RankBatches, Sampler, Stream

SIZES = {"cars": 120, "toys": 40, "art": 5}  # art is smaller than a batch
DOMAINS = pd.Series([name for name, size in SIZES.items() for _ in range(size)])
KINDS = ("mixed", "dataset_size", "round_robin")


def sampler(kind: str, seed: int = 0, batch_size: int = 8) -> Sampler:
    return Sampler(DOMAINS, kind, batch_size, (seed, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_depends_on_seed_and_step_alone(kind: str) -> None:
    forward = [sampler(kind).batch(step) for step in range(50)]
    backward = [sampler(kind).batch(step) for step in reversed(range(50))][::-1]
    one = sampler(kind)
    jumping = {step: one.batch(step) for step in (49, 3, 17, 0)}
    for step, batch in enumerate(forward):
        np.testing.assert_array_equal(batch, backward[step])
    for step, batch in jumping.items():
        np.testing.assert_array_equal(batch, forward[step])
    other = [sampler(kind, seed=1).batch(step) for step in range(50)]
    assert any((a != b).any() for a, b in zip(forward, other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_is_full(kind: str) -> None:
    one = sampler(kind)
    assert {len(one.batch(step)) for step in range(100)} == {8}


def test_mixed_sees_every_image_once_before_any_twice() -> None:
    one = sampler("mixed")
    seen = np.concatenate([one.batch(step) for step in range(2 * len(DOMAINS))])
    for start in range(0, len(seen), len(DOMAINS)):
        assert sorted(seen[start : start + len(DOMAINS)]) == list(range(len(DOMAINS)))


@pytest.mark.parametrize("kind", ["dataset_size", "round_robin"])
def test_batches_of_one_domain_cover_it_evenly(kind: str) -> None:
    one = sampler(kind)
    seen: dict[str, Counter] = {name: Counter() for name in SIZES}
    for step in range(600):
        rows = one.batch(step)
        (domain,) = set(DOMAINS[rows])
        seen[domain].update(rows.tolist())
    for domain, counts in seen.items():
        assert len(counts) == SIZES[domain]
        assert max(counts.values()) - min(counts.values()) <= 1


def test_round_robin_takes_domains_in_turn() -> None:
    one = sampler("round_robin")
    order = [DOMAINS[one.batch(step)[0]] for step in range(9)]
    assert order == ["art", "cars", "toys"] * 3


def test_dataset_size_is_proportional_and_gives_a_small_domain_a_step() -> None:
    one = sampler("dataset_size")
    epoch = [DOMAINS[one.batch(step)[0]] for step in range(one.steps_per_epoch)]
    assert Counter(epoch) == {"cars": 15, "toys": 5, "art": 1}
    second = [DOMAINS[one.batch(one.steps_per_epoch + s)[0]] for s in range(one.steps_per_epoch)]
    assert Counter(second) == Counter(epoch) and second != epoch


def test_ranks_share_the_global_batch() -> None:
    one = sampler("mixed")
    whole = list(RankBatches(one, 3, 6, rank=0, ranks=1))
    parts = [list(RankBatches(one, 3, 6, rank=rank, ranks=2)) for rank in range(2)]
    for number, batch in enumerate(whole):
        assert sorted(parts[0][number] + parts[1][number]) == sorted(batch)
        assert [step for step, _, _ in batch] == [3 + number] * 8


def test_a_stream_shorter_than_the_request_wraps() -> None:
    stream = Stream(np.array([4, 5, 6]), (0,))
    taken = stream.take(0, 9)
    assert [sorted(taken[i : i + 3]) for i in (0, 3, 6)] == [[4, 5, 6]] * 3
    np.testing.assert_array_equal(stream.take(2, 4), taken[2:6])
