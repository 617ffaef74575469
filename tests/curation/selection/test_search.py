"""The search on disk: the same again after a kill, within its budget."""

from __future__ import annotations

import json

import numpy as np
import pytest
from additive_scores import additive, candidates

from guie.base.errors import UserError
from guie.config.data import SelectionRule
from guie.curation.selection import BudgetSpent, Candidate, Evaluations, Score, mix_name, search


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


def run(folder, counter=None, rule=RULE, identity="one", **budget):
    evaluations = Evaluations(folder / "log.jsonl", identity, counter or Counter(), **budget)
    return search(candidates(), evaluations, rule, folder / "steps.json")


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


def test_the_log_has_a_line_for_each_evaluation(tmp_path):
    counter = Counter()
    run(tmp_path, counter)
    head, *lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(head) == {"identity": "one"} and len(lines) == counter.calls
    assert json.loads(lines[0]).keys() == {"mix", "seed", "score", "domains", "seconds"}


def test_a_log_of_other_features_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(UserError, match="log.jsonl: contains scores of other images"):
        run(tmp_path, identity="two")
    (tmp_path / "log.jsonl").write_text('{"identity": "one"}\n[]\n')
    with pytest.raises(UserError, match="not a log of evaluations; delete it"):
        run(tmp_path)


def test_the_budget_ends_the_search_where_it_stands(tmp_path):
    counter = Counter()
    found = run(tmp_path, counter, max_evaluations=FIRST_STEP)
    assert counter.calls == FIRST_STEP and found.stopped == "budget" and mix_name(found.mix) == "a"
    again = Counter()
    assert run(tmp_path, again, max_evaluations=FIRST_STEP).steps == found.steps
    assert again.calls == 0, "what the log holds counts, so a restart ends at the same place"
    assert run(tmp_path, again).stopped == "no gain", "a larger budget goes on"


def test_minutes_are_those_of_training(tmp_path):
    run(tmp_path)
    head, *lines = (tmp_path / "log.jsonl").read_text().splitlines()
    slow = [json.dumps(json.loads(line) | {"seconds": 6.0}) for line in lines]
    (tmp_path / "log.jsonl").write_text("\n".join([head, *slow]) + "\n")
    found = run(tmp_path, max_minutes=1.3)  # thirteen evaluations of 6 s
    assert found.stopped == "budget" and len(found.steps) == 1


def test_a_budget_below_one_step_is_refused(tmp_path):
    with pytest.raises(UserError, match="set max_evaluations to 12 or more"):
        run(tmp_path, max_evaluations=FIRST_STEP - 1)


def test_a_score_that_is_no_number_is_refused(tmp_path):
    evaluations = Evaluations(tmp_path / "log.jsonl", "x", lambda mix, seed: Score(np.nan, {}))
    with pytest.raises(UserError, match="a: its score is nan"):
        evaluations.scores(frozenset({Candidate("a")}), range(2))
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1


def test_a_mix_is_known_by_its_sources_in_any_order(tmp_path):
    counter = Counter()
    evaluations = Evaluations(tmp_path / "log.jsonl", "x", counter, max_evaluations=1)
    first, second = frozenset(candidates("ab")), frozenset(reversed(candidates("ab")))
    assert evaluations.scores(first, range(1)) == evaluations.scores(second, range(1))
    with pytest.raises(BudgetSpent):
        evaluations.scores(first, range(1, 2))
