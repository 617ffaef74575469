"""GAP and accuracy against loops that follow the definitions word by word; limits of NMI."""

import numpy as np
import pytest

from guie.evaluation.metrics import recognition
from guie.evaluation.protocols.retrieval import nmi


def scores(*columns):
    """GAP, GAP- and accuracy of confidences, right answers, and queries that have an answer."""
    return tuple(recognition(*map(np.array, columns)).values())


def slow_gap(confidences, correct, answers):
    order = sorted(range(len(confidences)), key=lambda row: (-confidences[row], row))
    total = 0.0
    for i in range(1, len(order) + 1):
        if correct[order[i - 1]]:
            total += sum(correct[row] for row in order[:i]) / i
    return total / sum(answers)


@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_their_slow_twins(seed):
    """Answers with tied confidences; a third of the queries are distractors."""
    rng = np.random.default_rng(seed)
    has_answer_Q = rng.random(80) < 0.67
    is_correct_Q = has_answer_Q & (rng.random(80) < 0.6)
    lists = [(rng.integers(9, size=80) / 9).tolist(), is_correct_Q.tolist(), has_answer_Q.tolist()]
    known = [[column[row] for row in np.flatnonzero(has_answer_Q)] for column in lists]
    right = sum(lists[1]) / len(known[0])
    assert scores(*lists) == pytest.approx((slow_gap(*lists), slow_gap(*known), right))


@pytest.mark.parametrize(
    ("confidences", "correct", "answers", "expected"),
    [
        ([0.5, 0.5], [False, True], [True, True], (1 / 4, 1 / 4, 1 / 2)),  # ties go by row
        ([0.5, -np.inf], [True, False], [True, False], (1, 1, 1)),
        ([0.5, 0.4], [False, False], [False, False], (np.nan,) * 3),
    ],
)
def test_scores_by_hand(confidences, correct, answers, expected):
    assert scores(confidences, correct, answers) == pytest.approx(expected, nan_ok=True)


def test_nmi_at_its_limits(capfd):
    """Its clusters are compared with pytorch-metric-learning's in `test_agreement.py`."""
    emb_ND = np.repeat(np.eye(6, dtype=np.float32), 10, axis=0)
    label_N = np.repeat([f"domain/{c}" for c in "abcdef"], 10)
    # A random start may put two centres into one class
    best, seed = max((nmi(emb_ND, label_N, seed), seed) for seed in range(30))
    assert best == 1.0
    scale_N1 = np.random.default_rng(0).choice([0.5, 1, 4], (len(emb_ND), 1))
    assert nmi(emb_ND * scale_N1, label_N, seed) == 1.0, "vectors are normalised"
    rng = np.random.default_rng(0)
    assert nmi(rng.normal(size=(2000, 16)), rng.integers(4, size=2000)) < 0.01
    assert nmi(emb_ND, np.zeros(60)) == 1.0
    capfd.readouterr()
    assert nmi(np.eye(40, dtype=np.float32), np.arange(40)) == pytest.approx(1.0)
    assert capfd.readouterr() == ("", ""), "faiss warns of small clusters"
