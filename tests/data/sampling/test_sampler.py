"""Batches of every kind: functions of (seed, step), full, for any process."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from samplers import DOMAINS, KINDS, LABELS, SIZES, STEPS, each_kind, sampler

from guie.base.errors import UserError
from guie.data.sampling import RankBatches, RankDraws, Sampler, Stream
from guie.data.sampling.streams import key

ONE_DOMAIN = [kind for kind in KINDS if not kind.startswith("mixed")]


@each_kind
def test_a_batch_depends_on_seed_and_step_alone(kind: str) -> None:
    forward = [sampler(kind).batch(step) for step in range(50)]
    one = sampler(kind)
    jumping = {step: one.batch(step) for step in (49, 3, 17, 0, 30)}
    backward = [one.batch(step) for step in reversed(range(50))][::-1]
    np.testing.assert_array_equal(forward, backward)
    for step, batch in jumping.items():
        np.testing.assert_array_equal(batch, forward[step])
    other = [sampler(kind, seed=1).batch(step) for step in range(50)]
    assert (np.array(forward) != other).any()


@each_kind
def test_every_batch_is_full_and_every_image_comes(kind: str) -> None:
    one = sampler(kind)
    batches = np.stack([one.batch(step) for step in range(200)])
    assert batches.shape == (200, 8)
    assert set(batches.ravel()) == set(range(len(DOMAINS)))


@pytest.mark.parametrize("kind", ONE_DOMAIN)
def test_batches_of_one_domain(kind: str) -> None:
    one = sampler(kind)
    assert all(DOMAINS[one.batch(step)].nunique() == 1 for step in range(200))


@pytest.mark.parametrize("kind", [k for k in ONE_DOMAIN if "P x K" not in k])
def test_batches_of_one_domain_cover_it_evenly(kind: str) -> None:
    one = sampler(kind)
    rows = np.concatenate([one.batch(step) for step in range(200)])
    for domain in SIZES:
        counts = np.bincount(rows, minlength=len(DOMAINS))[DOMAINS == domain]
        assert counts.max() - counts.min() <= 1


def test_mixed_sees_every_image_once_before_any_twice() -> None:
    one = sampler("mixed")
    seen = np.concatenate([one.batch(step) for step in range(2 * len(DOMAINS))])
    for start in range(0, len(seen), len(DOMAINS)):
        assert sorted(seen[start : start + len(DOMAINS)]) == list(range(len(DOMAINS)))
    stream = Stream(np.arange(len(DOMAINS)), (0, 0, key("all")))
    np.testing.assert_array_equal(seen, stream.take(0, len(seen)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "P x K" in kind])
def test_classes_by_images(kind: str) -> None:
    one = sampler(kind, batch_size=16)
    for step in range(100):
        tuples = one.batch(step).reshape(-1, 4)
        labels = LABELS.to_numpy()[tuples]
        assert (labels == labels[:, :1]).all()
        if "temperature" not in kind and labels[0, 0] != "art/32":  # the only class of its domain
            assert len(set(labels[:, 0])) == 4
        for label, rows in zip(labels[:, 0], tuples, strict=True):
            assert len(set(rows)) == (1 if label == "cars/0" else 4)


def test_an_image_is_not_its_own_positive_unless_asked_for() -> None:
    one = sampler({"name": "balanced", "images_per_class": 5}, batch_size=10)
    assert one.left_out == 1
    assert all(len(set(part)) == 5 for s in range(99) for part in one.batch(s).reshape(-1, 5))
    seen = {row for step in range(200) for row in one.batch(step)}
    assert seen == set(range(165)) - set(LABELS.index[LABELS == "cars/0"])
    assert (LABELS == "cars/0").sum() == 1


@each_kind
def test_ranks_share_the_global_batch(kind: str) -> None:
    one = sampler(kind)
    whole = list(RankBatches(one, 3, 6, rank=0, ranks=1))
    for ranks in (2, 4):
        parts = [list(RankBatches(one, 3, 6, rank, ranks)) for rank in range(ranks)]
        for number, batch in enumerate(whole):
            together = [key for part in parts for key in part[number]]
            assert sorted(together) == sorted(batch)
            assert [step for step, _, _ in batch] == [3 + number] * 8
            for rank, part in enumerate(parts):
                assert [place for _, place, _ in part[number]] == list(range(rank, 8, ranks))


def test_a_category_without_images_is_no_domain() -> None:
    domains = DOMAINS.astype(pd.CategoricalDtype([*SIZES, "boats"]))
    one = Sampler(domains, "balanced", 8, (0, 0))
    assert one.domains == ["art", "cars", "toys"]
    np.testing.assert_array_equal(one.batch(5), sampler("balanced").batch(5))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"name": "balanced", "factors": {"boats": 2.0}},
            "factors names boats; .* art, cars, toys",
        ),
        ({"name": "specialist_steps", "steps": {"art": 1}}, "no entry for cars, toys"),
        ({"name": "specialist_steps", "steps": {**STEPS, "boats": 1}}, "steps names boats"),
        ({"name": "mixed", "images_per_class": 3}, "no multiple of .* 3; it can be 1, 2, 4, 8$"),
        (
            {"name": "balanced", "images_per_class": 8, "rare_classes": "leave_out"},
            "no class of art has images_per_class 8 images; set it to at most 5",
        ),
        ({"name": "loss_driven", "period": "2 steps"}, "at least 3"),
    ],
)
def test_what_cannot_be_sampled_is_refused(config: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        sampler(config)


def test_no_images_are_refused() -> None:
    with pytest.raises(UserError, match="no image to train on"):
        Sampler(pd.Series([], dtype=str), "mixed", 8, (0, 0))


@each_kind
def test_draws_are_the_batches_with_the_draws_before_each(kind: str) -> None:
    one, seen = sampler(kind), Counter()
    for step in range(60):
        visits, rows = one.draw(step)
        np.testing.assert_array_equal(rows, one.batch(step))
        seen.update(zip(rows.tolist(), visits.tolist(), strict=True))
    drawn, distinct = sum(seen.values()), len(seen)
    assert distinct > 0.98 * drawn and max(visit for _, visit in seen) >= 1
    late = [next(iter(RankDraws(one, 41, 60, rank, 2))) for rank in (0, 1)]
    for rank, (visits, rows) in enumerate(late):
        np.testing.assert_array_equal(visits, one.draw(41)[0][rank::2])
        np.testing.assert_array_equal(rows, one.draw(41)[1][rank::2])
