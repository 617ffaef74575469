"""Plans: quotas to the unit, steps in any order, weights by loss one period delayed."""

import numpy as np
import pytest

from guie.config.sampling import LossDrivenConfig
from guie.data.sampling.domains import Cyclic, LossDriven, Plan, Shuffled, apportion

DOMAINS = ["art", "cars", "toys"]
SEED = (0, 0)


def loss_driven(period: int = 10, **settings) -> LossDriven:
    config = LossDrivenConfig(name="loss_driven", period=f"{period} steps", **settings)
    return LossDriven(DOMAINS, config, SEED)


def units(plan: Plan, start: int, end: int) -> np.ndarray:
    """Units of each step and domain, (end - start, D)."""
    return np.stack([plan.at(step)[0] for step in range(start, end)])


def test_shares_are_exact_to_the_unit_and_what_is_rounded_away_comes_the_next_time() -> None:
    """Rounded alike every time, equal shares of 13 units would be 5, 4 and 4 for ever."""
    rng = np.random.default_rng(0)
    for share in (np.ones(3) / 3, np.array([1e-6, 0.3, 0.7 - 1e-6]), *rng.dirichlet(np.ones(7), 9)):
        given, owed = np.zeros(len(share), int), 0.0
        wanted = np.maximum(share, 1 / 13)
        wanted[share > 1 / 13] *= (1 - (share <= 1 / 13).sum() / 13) / share[share > 1 / 13].sum()
        for epoch in range(1, 50):
            quota, owed = apportion(share, 13, owed)
            assert quota.sum() == 13 and quota.min() >= 1
            given += quota
            if (wanted >= 1 / 13).all():
                assert np.abs(given - epoch * 13 * wanted).max() < 1 + 1e-9
    for total, expected in ((3, [1, 1, 1]), (50, [1, 1, 48])):
        assert apportion(np.array([1e-9, 1e-9, 1 - 2e-9]), total)[0].tolist() == expected
    assert apportion(np.full(3, 1 / 3), 10)[1].sum() == pytest.approx(0), "nothing is owed at first"


@pytest.mark.parametrize(
    "plan",
    [
        Shuffled(np.array([1, 5, 15]) / 21, 21, 1, SEED),
        Shuffled(np.array([1, 63, 20, 3]) / 87, 12, 7, SEED),
        Cyclic(3),
        loss_driven(20),
    ],
    ids=["one_domain", "mixed", "cyclic", "loss_driven"],
)
def test_before_is_the_sum_of_what_was_taken(plan: Plan) -> None:
    before = np.zeros(len(plan.shares(0)), int)
    for step in range(40):
        taken, given = plan.at(step)
        assert given.tolist() == before.tolist(), step
        before += taken
    if isinstance(plan, Shuffled):  # spread evenly over the steps, in another order each epoch
        quota_D, steps = plan.given_PD[1], plan.steps
        epochs = units(plan, 0, 2 * steps).reshape(2, steps, -1)
        assert (epochs.sum(axis=1) == quota_D).all() and (epochs[0] != epochs[1]).any()
        assert ((epochs == quota_D // steps) | (epochs == -(-quota_D // steps))).all()
    backward = [plan.at(step)[0].tolist() for step in reversed(range(40))][::-1]
    assert units(plan, 0, 40).tolist() == backward


def run(plan: LossDriven, start: int, end: int, losses: tuple[float, ...]) -> None:
    for step in range(start, end):
        plan.note(step, losses[int(plan.at(step)[0].argmax())])


def test_losses_set_the_period_after_the_next() -> None:
    plan = loss_driven(100)
    run(plan, 0, 100, (1.0, 3.0, 4.0))
    run(plan, 100, 200, (1.0, 1.0, 2.0))
    periods = units(plan, 0, 400).reshape(4, 100, 3).sum(axis=1)
    assert sorted(periods[0]) == sorted(periods[1]) == [33, 33, 34]
    assert np.abs(periods[2] - [12.5, 37.5, 50]).max() < 2  # with what was rounded away before
    assert np.abs(periods[3] - [25, 25, 50]).max() < 2
    np.testing.assert_allclose(plan.shares(250), [1 / 8, 3 / 8, 4 / 8])


def test_factors_and_memory() -> None:
    plan = loss_driven(100, factors={"art": 2.0}, memory=0.5)
    start = np.array([2, 1, 1]) / 4
    np.testing.assert_allclose(plan.shares(0), start)
    run(plan, 0, 100, (1.0, 3.0, 5.0))
    np.testing.assert_allclose(plan.shares(200), start / 2 + np.array([2, 3, 5]) / 10 / 2)


@pytest.mark.parametrize("loss", [0.0, -1.0, float("nan"), float("inf")])
def test_losses_that_say_nothing_change_nothing_and_a_period_holds_every_domain(loss):
    plan = loss_driven(100)
    run(plan, 0, 100, (0.0, 0.0, 1.0))
    run(plan, 100, 200, (loss, loss, loss))
    np.testing.assert_array_equal(plan.shares(300), plan.shares(200))
    assert units(plan, 200, 300).sum(axis=0).tolist() == [1, 1, 98]


def test_a_state_goes_on_to_the_same_bits_wherever_it_was_taken() -> None:
    losses = np.random.default_rng(0).exponential(size=50).astype(np.float32)
    whole = loss_driven(10)
    for step, loss in enumerate(losses):
        whole.note(step, loss)
    for cut in (1, 9, 10, 25, 49):
        first, second = loss_driven(10), loss_driven(10)
        for step in range(cut):
            first.note(step, losses[step])
        run(second, 0, 30, (1.0, 5.0, 2.0))  # what it was before is forgotten
        units(second, 20, 40)
        second.load(first.state())
        for step in range(cut, 50):
            second.note(step, losses[step])
        assert second.state() == whole.state()
        assert units(second, 0, 70).tolist() == units(whole, 0, 70).tolist()
