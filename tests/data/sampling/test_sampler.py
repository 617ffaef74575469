"""Batches of every kind: functions of (seed, step), full, for any process."""

import json
import signal
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from torch.utils.data import DataLoader, Dataset

from guie.base.errors import UserError
from guie.data.sampling import RankBatches, Sampler

SIZES = {"cars": 120, "toys": 40, "art": 5}  # art is smaller than a batch
DOMAINS = pd.Series([name for name, size in SIZES.items() for _ in range(size)])
# 5 images a class; of the first two classes of cars, one has 1 and one 9
LABELS = DOMAINS + "/" + pd.Series([str(max(row // 5, 1) if row else 0) for row in range(165)])
STEPS = {"cars": 20, "toys": 60, "art": 20}
PK = {"images_per_class": 4, "rare_classes": "repeat"}
KINDS = {
    "mixed": "mixed",
    "mixed by temperature": {"name": "mixed", "temperature": 2.0},
    "dataset_size": "dataset_size",
    "temperature": {"name": "dataset_size", "temperature": 2.0},
    "balanced": "balanced",
    "factors": {"name": "balanced", "factors": {"art": 2.0}},
    "round_robin": "round_robin",
    "specialist_steps": {"name": "specialist_steps", "steps": STEPS},
    "loss_driven": {"name": "loss_driven", "period": "100 steps"},
    "mixed P x K": {"name": "mixed", **PK},
    "mixed P x K by temperature": {"name": "mixed", **PK, "temperature": 2.0},
    "P x K": {"name": "dataset_size", **PK},
    "shards": {"name": "shards", "window": 3},
}
ONE_DOMAIN = [kind for kind in KINDS if not kind.startswith("mixed") and kind != "shards"]
SHARDS = pd.Series([f"{n % 7}.tar" for n in range(165)])
each_kind = pytest.mark.parametrize("kind", KINDS)


def sampler(kind: str | dict, seed: int = 0, batch_size: int = 8, **more) -> Sampler:
    config = KINDS.get(kind, kind) if isinstance(kind, str) else kind
    more = {"label_of_row": LABELS, "shard_of_row": SHARDS, **more}
    return Sampler(DOMAINS, config, batch_size, (seed, 0), **more)


def domain_counts(one: Sampler, steps: int) -> Counter:
    """How many batches were of each domain."""
    return Counter(DOMAINS[one.draw(step)[1][0]] for step in range(steps))


@each_kind
def test_batches_are_full_and_depend_on_seed_and_step_alone(kind: str) -> None:
    one, same, other = sampler(kind), sampler(kind), sampler(kind, seed=1)
    batches = np.stack([one.draw(step)[1] for step in range(200)])
    assert batches.shape == (200, 8) and set(batches.ravel()) == set(range(len(DOMAINS)))
    np.testing.assert_array_equal(batches[49::-1], [same.draw(s)[1] for s in reversed(range(50))])
    assert (batches[:50] != [other.draw(step)[1] for step in range(50)]).any()
    counts, domains = np.bincount(batches.ravel()), DOMAINS.to_numpy()[batches]
    if kind in ONE_DOMAIN:
        assert (domains == domains[:, :1]).all()
    if kind in ("mixed", "shards"):
        assert np.ptp(counts) <= 1
    for domain in SIZES if kind in ONE_DOMAIN and "P x K" not in kind else ():
        assert np.ptp(counts[DOMAINS == domain]) <= 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "P x K" in kind])
def test_classes_by_images(kind: str) -> None:
    one = sampler(kind, batch_size=16)
    for step in range(100):
        tuples = one.draw(step)[1].reshape(-1, 4)
        labels = LABELS.to_numpy()[tuples]
        assert (labels == labels[:, :1]).all()
        if "temperature" not in kind and labels[0, 0] != "art/32":  # the only class of its domain
            assert len(set(labels[:, 0])) == 4
        for label, rows in zip(labels[:, 0], tuples, strict=True):
            assert len(set(rows)) == (1 if label == "cars/0" else 4)


def test_an_image_is_not_its_own_positive_unless_asked_for() -> None:
    one = sampler({"name": "balanced", "images_per_class": 5}, batch_size=10)
    assert one.left_out == 1
    assert all(len(set(part)) == 5 for s in range(99) for part in one.draw(s)[1].reshape(-1, 5))
    seen = {row for step in range(200) for row in one.draw(step)[1]}
    assert seen == set(range(165)) - set(LABELS.index[LABELS == "cars/0"])
    assert (LABELS == "cars/0").sum() == 1


@each_kind
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_global_batch(kind: str, ranks: int) -> None:
    one = sampler(kind)
    (whole,) = RankBatches(one, 5, 6, rank=0, ranks=1)
    assert [(step, place) for step, place, _ in whole] == [(5, place) for place in range(8)]
    for rank in range(ranks):
        assert list(RankBatches(one, 5, 6, rank, ranks)) == [whole[rank::ranks]]
        ((visits, rows),) = RankBatches(one, 5, 6, rank, ranks).draws()
        np.testing.assert_array_equal(visits, one.draw(5)[0][rank::ranks])
        np.testing.assert_array_equal(rows, one.draw(5)[1][rank::ranks])


WEIGHTS = {"weight_of_row": pd.Series(2.0, index=DOMAINS.index)}


@pytest.mark.parametrize(
    ("config", "more", "says"),
    [
        ({"name": "balanced", "factors": {"boats": 2.0}}, {}, "factors names boats; .* art, cars"),
        ({"name": "specialist_steps", "steps": {"art": 1}}, {}, "no entry for cars, toys"),
        ({"name": "specialist_steps", "steps": {**STEPS, "boats": 1}}, {}, "steps names boats"),
        (
            {"name": "mixed", "images_per_class": 3},
            {},
            "no multiple of .* 3; it can be 1, 2, 4, 8$",
        ),
        (
            {"name": "balanced", "images_per_class": 8, "rare_classes": "leave_out"},
            {},
            "no class of art has images_per_class 8 images; set it to at most 5",
        ),
        ({"name": "loss_driven", "period": "2 steps"}, {}, "2 steps are too few.* at least 3"),
        (KINDS["P x K"], WEIGHTS, "images_per_class .* weight column; set weights: false"),
        ({"name": "shards"}, {"shard_of_row": None}, "needs an index of shards as data.manifest"),
        ({"name": "shards"}, WEIGHTS, "has a weight column"),
    ],
)
def test_what_cannot_be_sampled_is_refused(config: dict, more: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        sampler(config, **more)
    assert sampler({"name": "balanced", **PK, "weights": False}, **WEIGHTS)


@each_kind
def test_draws_count_the_draws_before_each(kind: str) -> None:
    one, seen = sampler(kind), Counter()
    for step in range(60):
        visits, rows = one.draw(step)
        seen.update(zip(rows.tolist(), visits.tolist(), strict=True))
    assert len(seen) > 0.98 * sum(seen.values()) and max(visit for _, visit in seen) >= 1


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
    epochs = [[DOMAINS[one.draw(e * steps + s)[1][0]] for s in range(steps)] for e in range(2)]
    for epoch in epochs:
        for domain, count in Counter(epoch).items():
            assert abs(count - steps * shares[domain] / total) < 1
    assert epochs[0] != epochs[1]


def test_mixed_shares_hold_in_every_batch() -> None:
    one = sampler({"name": "mixed", "temperature": float("inf"), "factors": {"art": 2.0}})
    batches = [one.draw(step)[1] for step in range(2 * one.steps_per_epoch)]
    for batch in batches:
        counts = DOMAINS[batch].value_counts()
        assert counts["art"] == 4 and counts["cars"] == counts["toys"] == 2
    # not domain by domain: micro-batches are cut from a batch in order
    assert len({DOMAINS[batch[0]] for batch in batches}) == 3


@pytest.mark.parametrize("kind", ["mixed", "dataset_size", "balanced", "round_robin"])
def test_an_epoch_is_what_the_weights_say_is_drawn(kind: str) -> None:
    """As the 2nd place repeats images to 20 a class: 5.49 million rows an epoch are its steps."""
    weights = pd.Series(1.0, index=DOMAINS.index).where(DOMAINS != "art", 11.0)
    more = sampler(kind, weight_of_row=weights)
    assert (sampler(kind).steps_per_epoch, more.steps_per_epoch) == (21, 27)  # 165 and 215 draws
    epoch = np.concatenate([more.draw(step)[1] for step in range(27)])
    if kind in ("mixed", "dataset_size"):
        counts = np.bincount(epoch, minlength=165)
        assert abs(counts[DOMAINS == "art"].mean() - 11) < 1
        assert abs(counts[DOMAINS != "art"].mean() - 1) < 0.05
    if kind == "dataset_size":
        assert domain_counts(more, 27)["art"] == 7 == round(27 * 55 / 215)
    if kind == "mixed":
        ignored = sampler({"name": "mixed", "weights": False}, weight_of_row=weights)
        np.testing.assert_array_equal(ignored.draw(3)[1], sampler("mixed").draw(3)[1])


class Keys(Dataset):
    """What the sampler asks for, as it is."""

    def __getitem__(self, key: tuple[int, int, int]) -> int:
        return key[2]


def trained_on(one: Sampler, start: int, end: int, workers: int) -> list[list[int]]:
    """The batches of a loop whose losses depend on what it trains on, as a loader serves them."""
    batches = RankBatches(one, start, end, rank=0, ranks=1)
    loader = DataLoader(Keys(), batch_sampler=batches, num_workers=workers)
    seen = []
    for step, rows in enumerate(loader, start):
        seen.append(rows.tolist())
        one.learner.note(step, (rows.double() + 1).log().mean().float())
    return seen


@pytest.fixture
def child_signals() -> Iterator[None]:
    """A plain loader leaves a handler behind that raises in whatever test loses a child next."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("child_signals")
def test_a_loader_that_reads_ahead_changes_nothing() -> None:
    config = {"name": "loss_driven", "period": "5 steps"}
    alone, ahead = sampler(config), sampler(config)
    seen = trained_on(alone, 0, 32, workers=0)
    assert trained_on(ahead, 0, 32, workers=2) == seen
    assert alone.shares(30) != alone.shares(0)
    first, second = sampler(config), sampler(config)
    trained_on(first, 0, 13, workers=0)
    second.load(json.loads(json.dumps(first.state())))  # plain numbers
    assert trained_on(second, 13, 32, workers=2) == seen[13:]
    short = sampler({"name": "loss_driven", "period": "3 steps"})
    with pytest.raises(UserError, match="step 6 .* above twice data.workers"):
        trained_on(short, 0, 32, workers=2)


def test_only_a_sampler_that_learns_has_a_state() -> None:
    one = sampler("dataset_size", batch_size=5)
    one.load({})
    assert one.state() == {} and not one.learner
    assert sampler("shards").steps_per_epoch == sampler("mixed").steps_per_epoch
    assert one.shares(0) == pytest.approx({"art": 5 / 165, "cars": 120 / 165, "toys": 40 / 165})


def test_categories_without_rows_are_no_domains_and_no_shards() -> None:
    """Of a stage that takes some domains only."""
    one = Sampler(DOMAINS.astype(pd.CategoricalDtype([*SIZES, "boats"])), "balanced", 8, (0, 0))
    assert one.domains == ["art", "cars", "toys"]
    names = SHARDS.astype("category")[:4]
    one = Sampler(pd.Series(["art"] * 4), {"name": "shards"}, 4, (0,), shard_of_row=names)
    assert sorted(one.draw(0)[1]) == list(range(4))
