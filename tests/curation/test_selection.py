"""The search for a mix: greedy steps, its log on disk, and its budget."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from guie.base.errors import UserError
from guie.config.data import ProxyEvaluatorConfig, SelectionConfig, SelectionRule
from guie.curation.evaluators import Score
from guie.curation.selection import (
    Candidate,
    Evaluations,
    Step,
    candidates_of,
    gains,
    mix_name,
    mix_rows,
    search,
    select,
    standard_error,
)
from guie.report.figures.mix import selection_curve

CERTAIN = SelectionRule(seeds=2, confirm_seeds=0, min_standard_errors=0.0)
WORTH = {"a": 0.3, "b": 0.1, "c": 0.05, "d": -0.02, "e": 0.0}


def candidates(names: str = "abcde", caps: tuple[int, ...] = (0,)) -> list[Candidate]:
    return [Candidate(name, cap) for name in names for cap in caps]


def noise(mix, seed: int, size: float) -> float:
    """A normal draw that belongs to this mix and seed."""
    key = [seed, *mix_name(mix).encode()]
    return size * float(np.random.default_rng(key).normal())


def names(steps) -> list[str]:
    return [step.change for step in steps if step.accepted]


def additive(size: float = 0.0):
    """Scores that add what each source is worth, with noise of its own for each mix and seed."""

    def scores(mix, seeds):
        value = math.fsum(WORTH[c.source] for c in mix)  # in any order the same
        return np.array([value + noise(mix, seed, size) for seed in seeds])

    return scores


class Counter:
    """An evaluator that counts, and is killed before the evaluation number `limit`."""

    def __init__(self, limit: int | None = None):
        self.calls, self.limit = 0, limit

    def __call__(self, mix, seed) -> Score:
        if self.calls == self.limit:
            raise KeyboardInterrupt
        self.calls += 1
        value = float(additive(0.03)(mix, [seed])[0])
        return Score(value, {"cars": value})


RULE = SelectionRule(seeds=2, confirm_seeds=2, min_standard_errors=1.0)
BACKWARD = RULE.model_copy(update={"directions": ["backward"]})
FIRST_STEP = 5 * 2 + 2  # evaluations


def run(folder, counter=None, rule=RULE, identity="one", **budget) -> list[Step]:
    rule = rule.model_copy(update=budget)
    evaluations = Evaluations(folder / "log.jsonl", identity, counter or Counter(), rule)
    return search(candidates(), evaluations, folder / "steps.json")


def stopped(folder) -> str:
    return json.loads((folder / "steps.json").read_text())["stopped"]


@pytest.mark.parametrize("killed_at", [0, 1, 7, 19])
def test_a_killed_search_resumes_to_the_same_bits(tmp_path, killed_at):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir(), cut.mkdir()
    unbroken = Counter()
    run(whole, unbroken)
    with pytest.raises(KeyboardInterrupt):
        run(cut, Counter(killed_at))
    with (cut / "log.jsonl").open("a") as file:
        file.write('{"mix": "a", "se')  # the kill fell into a write
    rest = Counter()
    run(cut, rest)
    assert rest.calls == unbroken.calls - killed_at, "nothing is evaluated twice"
    run(cut, Counter(0))  # all is in the log, the torn line is gone: a third start needs none
    ours, theirs = (json.loads((f / "steps.json").read_text()) for f in (whole, cut))
    ours.pop("training_seconds"), theirs.pop("training_seconds")
    assert ours == theirs and len(ours["steps"]) > 2


def test_a_log_of_other_features_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(UserError, match="log.jsonl: contains scores of other images"):
        run(tmp_path, identity="two")
    (tmp_path / "log.jsonl").write_text('{"identity": "one"}\n[]\n')
    with pytest.raises(UserError, match="not a log of evaluations; delete it"):
        run(tmp_path)


def test_the_budget_counts_evaluations_and_minutes_in_the_log_too(tmp_path):
    counter, again = Counter(), Counter()
    steps = run(tmp_path, counter, max_evaluations=FIRST_STEP)
    assert counter.calls == FIRST_STEP and mix_name(steps[-1].mix) == "a"
    assert run(tmp_path, again, max_evaluations=FIRST_STEP) == steps
    assert stopped(tmp_path) == "budget" and again.calls == 0
    run(tmp_path, again)
    assert stopped(tmp_path) == "no gain", "a larger budget continues"
    head, *lines = (tmp_path / "log.jsonl").read_text().splitlines()
    slow = [json.dumps(json.loads(line) | {"seconds": 6.0}) for line in lines]
    (tmp_path / "log.jsonl").write_text("\n".join([head, *slow]) + "\n")
    steps = run(tmp_path, max_minutes=1.3)  # thirteen evaluations of 6 s
    assert stopped(tmp_path) == "budget" and len(steps) == 1


@pytest.mark.parametrize(
    ("names", "rule", "most", "score", "fault"),
    [
        ("abcde", RULE, 9, 0.5, "budget ends within the first step.*max_evaluations"),
        ("abcde", BACKWARD, 11, 0.5, "budget ends within the first step"),
        ("a", BACKWARD, None, 0.5, "one source only, and backward can remove none"),
        ("a", RULE, None, math.nan, "a: its score is nan"),
    ],
)
def test_a_search_without_a_first_step_is_refused(names, rule, most, score, fault, tmp_path):
    evaluate = lambda mix, seed: Score(score, {})  # noqa: E731
    rule = rule.model_copy(update={"max_evaluations": most})
    evaluations = Evaluations(tmp_path / "log.jsonl", "x", evaluate, rule)
    with pytest.raises(UserError, match=fault):
        search(candidates(names), evaluations, tmp_path / "steps.json")


def test_candidates_are_sources_times_caps_that_cut_and_rows_those_of_the_mix():
    sizes = {"cars/x": 9, "cars/y": 2, "logos/x": 3, "logos/y": 1}
    rows = [
        (f"{label}/{n}.jpg", label, label.split("/")[0], "train")
        for label, size in sizes.items()
        for n in range(size)
    ]
    rows.append(("v.jpg", "cars/v", "cars", "val"))
    table = pd.DataFrame(rows, columns=["image_path", "label", "domain", "split"])
    found = candidates_of(table, "domain", [None, 5, 2])
    assert list(map(str, found)) == ["cars", "cars@2", "cars@5", "logos", "logos@2"]
    mix = frozenset({Candidate("cars", 5), Candidate("logos")})
    rows = mix_rows(table, mix, "domain", seed=0)
    sizes |= {"cars/x": 5}
    assert rows["label"].value_counts().to_dict() == sizes
    alone = mix_rows(table, frozenset({Candidate("cars", 5)}), "domain", seed=0)
    assert set(alone["image_path"]) < set(rows["image_path"]), "the same images in every mix"


def test_forward_takes_what_helps_in_order_and_its_gains_are_drawn():
    steps = list(select(candidates(), additive(), CERTAIN))
    assert [step.accepted for step in steps] == [True, True, True, False]
    assert steps[-1].tried == pytest.approx({"+d": -0.02, "+e": 0.0})
    table = gains(steps)
    assert table["change"].tolist() == ["+a", "+b", "+c", "+e", "+d"]
    assert table["step"].tolist() == [1, 2, 3, pd.NA, pd.NA]
    assert table["gain"].to_numpy() == pytest.approx([0.3, 0.1, 0.05, 0.0, -0.02])
    assert table["mix"].tolist() == ["a", "a+b", "a+b+c", "", ""]
    left, right = selection_curve(table).axes
    assert left.lines[0].get_ydata() == pytest.approx([0.3, 0.4, 0.45])
    assert [text.get_text() for text in left.get_xticklabels()] == ["+a", "+b", "+c"]
    assert [bar.get_width() for bar in right.patches] == pytest.approx([-0.02, 0.0])
    figure = selection_curve(gains(list(select(candidates("ab"), additive(), CERTAIN))))
    assert "nothing" in [text.get_text() for text in figure.axes[1].texts]


ALONE_AND_TOGETHER = {"a": 5, "b": 4, "c": 3, "a+b": 6, "a+c": 5, "a+b+c": 8, "b+c": 9}
CAPPED = {"a@5": 0.3, "a": 0.2, "b@5": 0.1, "b": 0.2, "a@5+b": 0.6, "a@5+b@5": 0.5}


@pytest.mark.parametrize(
    ("sources", "caps", "scores", "directions", "changes"),
    [
        # b and c together are worth more than a, which wins alone; then it only costs
        ("abc", (0,), ALONE_AND_TOGETHER, ["forward", "backward"], ["+a", "+b", "+c", "-a"]),
        ("abc", (0,), ALONE_AND_TOGETHER, ["backward"], ["-a"]),
        ("ab", (0, 5), CAPPED, ["forward"], ["+a@5", "+b"]),
    ],
)
def test_steps_back_and_caps(sources, caps, scores, directions, changes):
    rule = CERTAIN.model_copy(update={"directions": directions})
    table = lambda mix, seeds: np.full(len(seeds), scores.get(mix_name(mix), 0.0))  # noqa: E731
    steps = list(select(candidates(sources, caps), table, rule))
    assert names(steps) == changes
    if caps != (0,):
        assert "a@5 -> a" in steps[1].tried, "another cap of a source is a move too"


@pytest.mark.parametrize(
    ("rule", "least", "most"),
    [
        (SelectionRule(confirm_seeds=0, min_standard_errors=0.0), 0.7, 1.0),
        (SelectionRule(confirm_seeds=0), 0.12, 1.0),
        (SelectionRule(), 0.0, 0.06),
    ],
)
def test_noise_is_not_taken_for_gain(rule, least, most):
    """The best of seven draws passes for a gain often; on fresh seeds it seldom is one again."""
    taken, searches = 0, 100
    for number in range(searches):

        def scores(mix, seeds, number=number):
            return np.array([noise(mix, 1000 * number + seed, 0.1) for seed in seeds])

        taken += len(names(select(candidates("abcdefgh"), scores, rule))) > 1
    assert least <= taken / searches <= most


def test_a_gain_beyond_the_noise_is_found_on_the_confirmation_seeds():
    rule, scores = SelectionRule(seeds=4, confirm_seeds=16), additive(size=0.01)
    steps = list(select(candidates("abd"), scores, rule))
    assert names(steps) == ["+a", "+b"]
    mix, screen, fresh = steps[0].mix, range(20, 24), range(24, 40)  # after the first step's
    tried = [scores(mix | {one}, screen) - scores(mix, screen) for one in candidates("bd")]
    # Confirmed on four times as many seeds
    assert steps[1].standard_error == pytest.approx(standard_error(tried) / 2)
    gain = scores(steps[1].mix, fresh) - scores(mix, fresh)
    assert steps[1].gain == pytest.approx(gain.mean())
    variances = [np.array([1.0, 3.0]), np.array([0.0, 0.0])]  # 2 and 0
    assert standard_error(variances) == pytest.approx(np.sqrt(1.0 / 2))


def test_configs_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="1 seed has no standard error"):
        SelectionRule(confirm_seeds=1)
    with pytest.raises(ValueError, match="full: missing, and evaluator full needs it"):
        SelectionConfig(evaluator="full", proxy=ProxyEvaluatorConfig(model="timm:resnet18"))
