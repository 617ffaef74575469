"""GAP and accuracy against loops that follow the definitions word by word."""

import numpy as np
import pytest

from guie.evaluation.recognition import accuracy, gap, gap_minus


def slow_gap(confidences, correct, answers):
    order = sorted(range(len(confidences)), key=lambda row: (-confidences[row], row))
    total = 0.0
    for i in range(1, len(order) + 1):
        if correct[order[i - 1]]:
            total += sum(correct[row] for row in order[:i]) / i
    return total / sum(answers)


def answered(queries=80, seed=0, levels=9):
    """Answers with tied confidences; a third of the queries are distractors."""
    rng = np.random.default_rng(seed)
    has_answer_Q = rng.random(queries) < 0.67
    is_correct_Q = has_answer_Q & (rng.random(queries) < 0.6)
    return rng.integers(levels, size=queries) / levels, is_correct_Q, has_answer_Q


@pytest.mark.parametrize("seed", range(5))
def test_gap_equals_its_slow_twin(seed):
    confidence_Q, is_correct_Q, has_answer_Q = answered(seed=seed)
    lists = [a.tolist() for a in (confidence_Q, is_correct_Q, has_answer_Q)]
    assert gap(confidence_Q, is_correct_Q, has_answer_Q) == pytest.approx(slow_gap(*lists))
    known = [row for row in range(len(lists[0])) if lists[2][row]]
    slow_minus = slow_gap(*([a[row] for row in known] for a in lists))
    assert gap_minus(confidence_Q, is_correct_Q, has_answer_Q) == pytest.approx(slow_minus)
    right = sum(is_correct_Q.tolist()) / len(known)
    assert accuracy(is_correct_Q, has_answer_Q) == pytest.approx(right)


def test_gap_by_hand():
    """Ranking: right, distractor, right, wrong; three have an answer: (1/1 + 2/3) / 3."""
    confidence_Q, is_correct_Q = [0.5, 0.9, 0.1, 0.7], [True, True, False, False]
    has_answer_Q = [True, True, True, False]
    assert gap(confidence_Q, is_correct_Q, has_answer_Q) == pytest.approx((1 + 2 / 3) / 3)
    assert gap_minus(confidence_Q, is_correct_Q, has_answer_Q) == pytest.approx((1 + 1) / 3)
    assert accuracy(is_correct_Q, has_answer_Q) == pytest.approx(2 / 3)


def test_only_a_sure_distractor_costs():
    right_Q, answer_Q = [True] * 4 + [False] * 2, [True] * 4 + [False] * 2
    assert gap([0.9, 0.8, 0.7, 0.6, 0.5, -np.inf], right_Q, answer_Q) == 1.0
    assert gap([0.9, 0.8, 0.7, 0.6, 1.0, -np.inf], right_Q, answer_Q) < 0.8
    assert gap_minus([0.9, 0.8, 0.7, 0.6, 1.0, -np.inf], right_Q, answer_Q) == 1.0


def test_ties_keep_the_order_of_the_rows():
    assert gap([0.5, 0.5], [True, False], [True, True]) == pytest.approx(1 / 2)
    assert gap([0.5, 0.5], [False, True], [True, True]) == pytest.approx(1 / 4)


def test_without_an_answer_to_find_there_is_no_score():
    for nobody in ([], [False, False]):
        confidence_Q = np.zeros(len(nobody))
        assert np.isnan(gap(confidence_Q, nobody, nobody))
        assert np.isnan(gap_minus(confidence_Q, nobody, nobody))
        assert np.isnan(accuracy(nobody, nobody))


@pytest.mark.parametrize(
    ("confidence_Q", "is_correct_Q", "has_answer_Q", "message"),
    [
        ([0.5], [True, True], [True, True], "one entry a query"),
        ([np.nan, 0.5], [True, True], [True, True], "NaN"),
        ([0.4, 0.5], [True, True], [True, False], "without an answer"),
    ],
)
def test_answers_that_cannot_be_are_refused(confidence_Q, is_correct_Q, has_answer_Q, message):
    for score in (gap, gap_minus):
        with pytest.raises(ValueError, match=message):
            score(confidence_Q, is_correct_Q, has_answer_Q)
