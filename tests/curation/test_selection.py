"""The search for a mix: greedy steps, its log on disk, and its budget."""

from __future__ import annotations

import json
import math
from itertools import combinations

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
    render,
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
FIRST_STEP = 5 * 2 + 2  # evaluations


def run(folder, counter=None, rule=RULE, identity="one", **budget) -> list[Step]:
    evaluations = Evaluations(folder / "log.jsonl", identity, counter or Counter(), **budget)
    return search(candidates(), evaluations, rule, folder / "steps.json")


def stopped(folder) -> str:
    return json.loads((folder / "steps.json").read_text())["stopped"]


@pytest.mark.parametrize("killed_at", [0, 1, 7, 19])
def test_a_killed_search_goes_on_to_the_same_bits(tmp_path, killed_at):
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
    run(cut, Counter(0))  # all stands in the log, the torn line is gone: a third start needs none
    ours, theirs = (json.loads((f / "steps.json").read_text()) for f in (whole, cut))
    ours.pop("training_seconds"), theirs.pop("training_seconds")
    assert ours == theirs and len(ours["steps"]) > 2


def test_a_log_of_other_features_is_refused(tmp_path):
    counter = Counter()
    run(tmp_path, counter)
    head, *lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(head) == {"identity": "one"} and len(lines) == counter.calls
    assert json.loads(lines[0]).keys() == {"mix", "seed", "score", "domains", "seconds"}
    with pytest.raises(UserError, match="log.jsonl: contains scores of other images"):
        run(tmp_path, identity="two")
    (tmp_path / "log.jsonl").write_text('{"identity": "one"}\n[]\n')
    with pytest.raises(UserError, match="not a log of evaluations; delete it"):
        run(tmp_path)


def test_the_budget_ends_the_search_where_it_stands(tmp_path):
    counter = Counter()
    steps = run(tmp_path, counter, max_evaluations=FIRST_STEP)
    assert counter.calls == FIRST_STEP and mix_name(steps[-1].mix) == "a"
    again = Counter()
    assert run(tmp_path, again, max_evaluations=FIRST_STEP) == steps
    assert stopped(tmp_path) == "budget"
    assert again.calls == 0, "what the log holds counts, so a restart ends at the same place"
    run(tmp_path, again)
    assert stopped(tmp_path) == "no gain", "a larger budget goes on"


def test_minutes_are_those_of_training(tmp_path):
    run(tmp_path)
    head, *lines = (tmp_path / "log.jsonl").read_text().splitlines()
    slow = [json.dumps(json.loads(line) | {"seconds": 6.0}) for line in lines]
    (tmp_path / "log.jsonl").write_text("\n".join([head, *slow]) + "\n")
    steps = run(tmp_path, max_minutes=1.3)  # thirteen evaluations of 6 s
    assert stopped(tmp_path) == "budget" and len(steps) == 1


def test_a_search_without_a_first_step_is_refused(tmp_path):
    with pytest.raises(UserError, match="set max_evaluations to 12 or more"):
        run(tmp_path, max_evaluations=FIRST_STEP - 1)
    rule = RULE.model_copy(update={"directions": ["backward"]})
    with pytest.raises(UserError, match="set max_evaluations to 16 or more"):
        run(tmp_path, rule=rule, max_evaluations=15)
    assert run(tmp_path, rule=rule, max_evaluations=16)
    evaluations = Evaluations(tmp_path / "one.jsonl", "x", Counter())
    with pytest.raises(UserError, match="one source only, and backward can remove none"):
        search(candidates("a"), evaluations, rule, tmp_path / "steps.json")
    evaluations = Evaluations(tmp_path / "nan.jsonl", "x", lambda mix, seed: Score(np.nan, {}))
    with pytest.raises(UserError, match="a: its score is nan"):
        evaluations.scores(frozenset({Candidate("a")}), range(2))
    assert len((tmp_path / "nan.jsonl").read_text().splitlines()) == 1


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
    assert rows["label"].value_counts().to_dict() == {
        "cars/x": 5,
        "logos/x": 3,
        "cars/y": 2,
        "logos/y": 1,
    }
    assert (rows["split"] == "train").all() and rows["image_path"].is_unique
    alone = mix_rows(table, frozenset({Candidate("cars", 5)}), "domain", seed=0)
    assert set(alone["image_path"]) < set(rows["image_path"]), "the same images in every mix"


def test_gains_and_their_curve():
    steps = list(select(candidates(), additive(), CERTAIN))
    table = gains(steps)
    assert table["change"].tolist() == ["+a", "+b", "+c", "+e", "+d"]
    assert table["step"].tolist() == [1, 2, 3, pd.NA, pd.NA]
    assert table["gain"].to_numpy() == pytest.approx([0.3, 0.1, 0.05, 0.0, -0.02])
    assert table["mix"].tolist() == ["a", "a+b", "a+b+c", "", ""]
    assert "0.0500" in render(steps)
    left, right = selection_curve(table).axes
    assert left.lines[0].get_ydata() == pytest.approx([0.3, 0.4, 0.45])
    assert [text.get_text() for text in left.get_xticklabels()] == ["+a", "+b", "+c"]
    assert [bar.get_width() for bar in right.patches] == pytest.approx([-0.02, 0.0])
    figure = selection_curve(gains(list(select(candidates("ab"), additive(), CERTAIN))))
    assert "nothing" in [text.get_text() for text in figure.axes[1].texts]


def test_configs_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="1 seed has no standard error"):
        SelectionRule(confirm_seeds=1)
    with pytest.raises(ValueError, match="full: missing, and evaluator full needs it"):
        SelectionConfig(evaluator="full", proxy=ProxyEvaluatorConfig(model="timm:resnet18"))


def test_forward_takes_what_helps_in_order_and_stops():
    steps = list(select(candidates(), additive(), CERTAIN))
    assert names(steps) == ["+a", "+b", "+c"]
    assert [step.accepted for step in steps] == [True, True, True, False]
    assert steps[1].gain == pytest.approx(0.1) and steps[2].score == pytest.approx(0.45)
    assert steps[-1].tried == pytest.approx({"+d": -0.02, "+e": 0.0})
    assert mix_name(steps[-1].mix) == "a+b+c"


def test_backward_after_forward_undoes_what_became_useless():
    """b and c together are worth more than a, which wins alone; then it only costs."""

    def scores(mix, seeds):
        present = "".join(sorted(c.source for c in mix))
        table = {"a": 5, "b": 4, "c": 3, "ab": 6, "ac": 5, "abc": 8, "bc": 9}
        return np.full(len(seeds), float(table[present]))

    rule = CERTAIN.model_copy(update={"directions": ["forward", "backward"]})
    steps = list(select(candidates("abc"), scores, rule))
    assert names(steps) == ["+a", "+b", "+c", "-a"]
    rule = CERTAIN.model_copy(update={"directions": ["backward"]})
    steps = list(select(candidates(), additive(), rule))
    assert names(steps) == ["-d"] and mix_name(steps[-1].mix) == "a+b+c+e"


def test_a_cap_takes_the_place_of_another_of_its_source():
    value = {"a@5": 0.3, "a": 0.2, "b@5": 0.1, "b": 0.2, "a@5+b": 0.6, "a@5+b@5": 0.5}

    def scores(mix, seeds):
        return np.full(len(seeds), value.get(mix_name(mix), 0.0))

    steps = list(select(candidates("ab", (0, 5)), scores, CERTAIN))
    assert names(steps) == ["+a@5", "+b"]
    assert "a@5 -> a" in steps[1].tried, "another cap of a source is a move too"
    assert mix_name(steps[-1].mix) == "a@5+b"


def test_against_every_subset():
    """Where values add, greedy must end at the best of all subsets."""
    draw = np.random.default_rng(3)
    worth = dict(zip("abcdefg", draw.normal(size=7), strict=True))
    worth["a"] = 2.0

    def scores(mix, seeds):
        return np.full(len(seeds), math.fsum(worth[c.source] for c in mix))

    steps = list(select(candidates("abcdefg"), scores, CERTAIN))
    best = max(
        (subset for size in range(1, 8) for subset in combinations("abcdefg", size)),
        key=lambda subset: sum(worth[name] for name in subset),
    )
    assert mix_name(steps[-1].mix) == "+".join(best)


def false_gains(rule: SelectionRule, searches: int = 100) -> float:
    """Share of searches that take a second source though no source is worth anything."""
    taken = 0
    for number in range(searches):

        def scores(mix, seeds, number=number):
            return np.array([noise(mix, 1000 * number + seed, 0.1) for seed in seeds])

        taken += len(names(select(candidates("abcdefgh"), scores, rule))) > 1
    return taken / searches


def test_noise_is_not_taken_for_gain():
    """The best of seven draws passes for a gain often; on fresh seeds it seldom is one again."""
    assert false_gains(SelectionRule(confirm_seeds=0, min_standard_errors=0.0)) > 0.7
    assert false_gains(SelectionRule(confirm_seeds=0)) > 0.12
    assert false_gains(SelectionRule()) < 0.06


def test_a_gain_beyond_the_noise_is_found():
    rule, scores = SelectionRule(seeds=4, confirm_seeds=16), additive(size=0.01)
    steps = list(select(candidates("abd"), scores, rule))
    assert names(steps) == ["+a", "+b"]
    assert steps[1].gain == pytest.approx(0.1, abs=0.03)
    mix, screen = steps[0].mix, range(20, 24)  # after the seeds of the first step
    tried = [scores(mix | {one}, screen) - scores(mix, screen) for one in candidates("bd")]
    # Confirmed on four times as many seeds
    assert steps[1].standard_error == pytest.approx(standard_error(tried) / 2)


def test_the_gain_is_of_the_confirmation_seeds():
    rule = SelectionRule(seeds=2, confirm_seeds=2, min_standard_errors=0.0)

    def scores(mix, seeds):
        return np.array([len(mix) * (1.0 if seed % 4 < 2 else 0.25) for seed in seeds])

    steps = list(select(candidates("ab"), scores, rule))
    assert steps[1].gain == pytest.approx(0.25) and steps[1].tried == {"+b": 1.0}


def test_standard_error_pools_the_candidates():
    gains = [np.array([1.0, 3.0]), np.array([0.0, 0.0])]  # variances 2 and 0
    assert standard_error(gains) == pytest.approx(np.sqrt(1.0 / 2))
