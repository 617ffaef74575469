"""Each metric against a slow twin straight from its definition; graded rankings; recognition."""

import numpy as np
import pytest

from guie.base.errors import UserError
from guie.evaluation import metrics
from guie.evaluation.bootstrap import harmonic_headline
from guie.evaluation.graded import EASY, HARD, JUNK, NEGATIVE, read_grades, revisited
from guie.evaluation.metrics import recognition
from guie.evaluation.protocols.retrieval import nmi

# Slow twins: `relevant` is the whole ranking of one query as a list, `n` its positives.


def slow_precision_sum(relevant, last):
    return sum(sum(relevant[:i]) / i for i in range(1, last + 1) if relevant[i - 1])


SLOW = {
    "r_at_1": lambda relevant, n: float(relevant[0]),
    "mmp_at_5": lambda relevant, n: sum(relevant[: min(n, 5)]) / min(n, 5),
    "map_at_100": lambda relevant, n: (
        slow_precision_sum(relevant, min(100, len(relevant))) / min(n, 100)
    ),
    "map_at_r": lambda relevant, n: slow_precision_sum(relevant, n) / n,
    "r_precision": lambda relevant, n: sum(relevant[:n]) / n,
    **{
        f"recall_at_{k}": lambda relevant, n, k=k: float(sum(relevant[:k]) > 0)
        for k in (2, 4, 8, 10, 20, 30, 40, 100)
    },
}


@pytest.mark.parametrize("length", [3, 60, 260])
def test_metrics_equal_their_slow_twins(length):
    """Shuffled full rankings, several for each number of positives."""
    positives = [n for n in (1, 2, 3, 4, 5, 6, 50, 99, 100, 101, 200) if n <= length] * 5
    rng = np.random.default_rng(0)
    relevant_QK = np.array([rng.permutation(np.arange(length) < n) for n in positives])
    found = metrics.ranking_metrics(relevant_QK, np.array(positives))
    assert list(found) == list(SLOW)
    for key, fast_Q in found.items():
        slow_Q = [SLOW[key](row.tolist(), n) for row, n in zip(relevant_QK, positives, strict=True)]
        np.testing.assert_allclose(fast_Q, slow_Q, rtol=1e-12, err_msg=key)


def test_harmonic_mean():
    with np.errstate(all="raise"):
        found = harmonic_headline(np.array([[0.5, 1.0], [0.9, 0.0]]))
    assert found == pytest.approx([2 / (1 / 0.5 + 1 / 1.0), 0.0])


def test_ranks_that_metrics_need():
    assert metrics.depth_of(["r_at_1", "mmp_at_5"], 400) == 5
    assert metrics.depth_of(["recall_at_1000", "map_at_100"], 400) == 1000
    assert metrics.depth_of(["map_at_r", "recall_at_8"], 400) == 400
    with pytest.raises(ValueError, match="'ndcg' is not a metric"):
        metrics.depth_of(["ndcg"], 1)


# ---------------------------------------------------------------- graded rankings

SETS = {"easy": ("e", "hj"), "medium": ("eh", "j"), "hard": ("h", "ej")}
GRADES = {"e": EASY, "h": HARD, "j": JUNK, "n": NEGATIVE}


def coded(*rankings):
    return np.array([[GRADES[letter] for letter in ranking] for ranking in rankings])


def slow_revisited(ranking, protocol, depths):
    """One query's AP and precisions: junk is dropped from the list, then precisions are counted."""
    wanted, dropped = SETS[protocol]
    hits = [letter in wanted for letter in ranking if letter not in dropped]
    if not any(hits):
        return [float("nan")] * (1 + len(depths))
    area = 0.0
    for rank, hit in enumerate(hits):
        if hit:
            before = sum(hits[:rank]) / rank if rank else 1.0
            area += (before + sum(hits[: rank + 1]) / (rank + 1)) / 2
    values = [area / sum(hits)]
    last = max(rank for rank, hit in enumerate(hits, start=1) if hit)
    for k in depths:
        window = min(last, k)
        values.append(sum(hits[:window]) / window)
    return values


@pytest.mark.parametrize("protocol", SETS)
def test_protocols_equal_their_slow_twin(protocol):
    rng = np.random.default_rng(0)
    shares = [rng.dirichlet([1, 1, 1, 3]) for _ in range(30)]
    rankings = ["".join(rng.choice([*"ehjn"], size=40, p=p)) for p in shares]
    scores = revisited(coded(*rankings))
    keys = [f"{protocol}_{what}" for what in ("ap", "p_at_1", "p_at_5", "p_at_10")]
    slow = np.array([slow_revisited(ranking, protocol, (1, 5, 10)) for ranking in rankings])
    np.testing.assert_allclose(np.stack([scores[key] for key in keys], 1), slow, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("query,image\na,b\n", "missing columns grade"),
        ("query,image,grade\na,b,easy\na,c,ok\n", "csv:3: unknown grade 'ok'; known: easy"),
        ("query,image,grade\na,b,easy\na,b,junk\n", "csv:3: this pair is already graded"),
    ],
)
def test_bad_grades_are_named(text, fault, tmp_path):
    path = tmp_path / "relevance.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=f"relevance.*{fault}"):
        read_grades(path)


# ---------------------------------------------------------------- recognition


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
    found = tuple(recognition(*map(np.array, lists)).values())
    assert found == pytest.approx((slow_gap(*lists), slow_gap(*known), right))


@pytest.mark.parametrize(
    ("confidences", "correct", "answers", "expected"),
    [
        ([0.5, 0.5], [False, True], [True, True], (1 / 4, 1 / 4, 1 / 2)),  # ties go by row
        ([0.5, -np.inf], [True, False], [True, False], (1, 1, 1)),
        ([0.5, 0.4], [False, False], [False, False], (np.nan,) * 3),
    ],
)
def test_scores_by_hand(confidences, correct, answers, expected):
    found = recognition(*map(np.array, (confidences, correct, answers)))
    assert tuple(found.values()) == pytest.approx(expected, nan_ok=True)


def test_nmi_at_its_limits(capfd):
    """Its clusters are compared with pytorch-metric-learning's in `test_agreement.py`."""
    emb_ND = np.repeat(np.eye(6, dtype=np.float32), 10, axis=0)
    scale_N1 = np.random.default_rng(0).choice([0.5, 1, 4], (len(emb_ND), 1))
    label_N = np.repeat([f"domain/{c}" for c in "abcdef"], 10)
    # A random start may put two centres into one class; vectors are normalised
    assert max(nmi(emb_ND * scale_N1, label_N, seed) for seed in range(30)) == 1.0
    assert nmi(emb_ND, np.zeros(60)) == 1.0
    capfd.readouterr()
    assert nmi(np.eye(40, dtype=np.float32), np.arange(40)) == pytest.approx(1.0)
    assert capfd.readouterr() == ("", ""), "faiss warns of small clusters"
