"""Shares of domains: to the step in every epoch, by temperature, factors and weights."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from samplers import DOMAINS, PK, STEPS, domain_counts, sampler

from guie.base.errors import UserError
from guie.data.sampling import Sampler


def test_round_robin_takes_domains_in_turn() -> None:
    one = sampler("round_robin")
    order = [DOMAINS[one.batch(step)[0]] for step in range(9)]
    assert order == ["art", "cars", "toys"] * 3


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("dataset_size", {"cars": 120, "toys": 40, "art": 5}),
        ("temperature", {"cars": 120**0.5, "toys": 40**0.5, "art": 5**0.5}),
        ("balanced", {"cars": 1, "toys": 1, "art": 1}),
        ("factors", {"cars": 1, "toys": 1, "art": 2}),
        ("specialist_steps", STEPS),
        ("loss_driven", {"cars": 1, "toys": 1, "art": 1}),
    ],
)
def test_every_epoch_has_the_shares_to_the_step(kind: str, shares: dict[str, float]) -> None:
    one, total = sampler(kind), sum(shares.values())
    steps = 100 if kind == "loss_driven" else one.steps_per_epoch
    epochs = [[DOMAINS[one.batch(e * steps + s)[0]] for s in range(steps)] for e in range(2)]
    for epoch in epochs:
        for domain, count in Counter(epoch).items():
            assert abs(count - steps * shares[domain] / total) < 1
    assert epochs[0] != epochs[1]


def test_dataset_size_gives_a_small_domain_a_step() -> None:
    one = sampler("dataset_size")
    assert one.steps_per_epoch == 21
    assert domain_counts(one, 21) == {"cars": 15, "toys": 5, "art": 1}
    assert domain_counts(sampler("dataset_size", batch_size=64), 4)["art"] == 1


def test_mixed_shares_hold_in_every_batch() -> None:
    one = sampler({"name": "mixed", "temperature": float("inf"), "factors": {"art": 2.0}})
    batches = [one.batch(step) for step in range(2 * one.steps_per_epoch)]
    for batch in batches:
        counts = DOMAINS[batch].value_counts()
        assert counts["art"] == 4 and counts["cars"] == counts["toys"] == 2
    # not domain by domain: micro-batches are cut from a batch in order
    assert len({DOMAINS[batch[0]] for batch in batches}) == 3


def test_weights_of_the_manifest() -> None:
    weights = pd.Series(1.0, index=DOMAINS.index).where(DOMAINS != "art", 11.0)
    rows = np.concatenate(
        [sampler("mixed", weight_of_row=weights).batch(step) for step in range(215)]
    )
    share = Counter(DOMAINS[rows])["art"] / len(rows)
    assert share == pytest.approx(55 / 215, abs=0.01)
    by_size = sampler("dataset_size", weight_of_row=weights)
    assert domain_counts(by_size, 27)["art"] == 7 == round(27 * 55 / 215)
    config = {"name": "mixed", "weights": False}
    ignored = sampler(config, weight_of_row=weights).batch(3)
    np.testing.assert_array_equal(ignored, sampler("mixed").batch(3))


@pytest.mark.parametrize("kind", ["mixed", "dataset_size", "balanced", "round_robin"])
def test_an_epoch_is_what_the_weights_say_is_drawn(kind: str) -> None:
    """As the 2nd place repeats images to 20 a class: 5.49 million rows an epoch are its steps."""
    plain = sampler(kind).steps_per_epoch
    weights = pd.Series(1.0, index=DOMAINS.index).where(DOMAINS != "art", 11.0)
    more = sampler(kind, weight_of_row=weights)
    assert (plain, more.steps_per_epoch) == (21, 27)  # 165 images, 215 draws
    epoch = np.concatenate([more.batch(step) for step in range(27)])
    if kind in ("mixed", "dataset_size"):
        counts = np.bincount(epoch, minlength=165)
        assert abs(counts[DOMAINS == "art"].mean() - 11) < 1
        assert abs(counts[DOMAINS != "art"].mean() - 1) < 0.05


def test_shares_do_not_drift_by_rounding() -> None:
    one = sampler("balanced")  # 21 steps for 3 domains come out even; 20 would not
    uneven = Sampler(DOMAINS[:158], "balanced", 8, (0, 0))
    assert (one.steps_per_epoch, uneven.steps_per_epoch) == (21, 20)
    counts = domain_counts(uneven, 5 * 20)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_classes_by_images_refuse_weights() -> None:
    weights = pd.Series(2.0, index=DOMAINS.index)
    with pytest.raises(UserError, match="images_per_class .* weight column; set weights: false"):
        sampler("P x K", weight_of_row=weights)
    sampler({"name": "balanced", **PK, "weights": False}, weight_of_row=weights)
