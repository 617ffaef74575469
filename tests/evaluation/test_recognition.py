"""GAP and accuracy against loops that follow the definitions word by word; limits of NMI."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.inference import FaissKMeans
from sklearn.metrics import normalized_mutual_info_score

from guie.evaluation.recognition import accuracy, gap, gap_minus, nmi


def scores(confidences, correct, answers):
    """GAP, GAP- and accuracy."""
    given_Q, correct_Q, has_answer_Q = np.array(confidences), np.array(correct), np.array(answers)
    whole = gap(given_Q, correct_Q, has_answer_Q), gap_minus(given_Q, correct_Q, has_answer_Q)
    return *whole, accuracy(correct_Q, has_answer_Q)


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
        # Right, distractor, right, wrong; three have an answer.
        (
            [0.5, 0.9, 0.1, 0.7],
            [True, True, False, False],
            [True, True, True, False],
            ((1 + 2 / 3) / 3, (1 + 1) / 3, 2 / 3),
        ),
        ([0.5, 0.5], [True, False], [True, True], (1 / 2, 1 / 2, 1 / 2)),  # ties go by row
        ([0.5, 0.5], [False, True], [True, True], (1 / 4, 1 / 4, 1 / 2)),
        ([0.5, -np.inf], [True, False], [True, False], (1, 1, 1)),
        ([0.5, 0.4], [False, False], [False, False], (np.nan,) * 3),
    ],
)
def test_scores_by_hand(confidences, correct, answers, expected):
    assert scores(confidences, correct, answers) == pytest.approx(expected, nan_ok=True)


def blobs(classes, size, noise):
    rng = np.random.default_rng(0)
    label_N = np.repeat(np.arange(classes), size)
    centre_CD = rng.normal(size=(classes, 16))
    emb_ND = centre_CD[label_N] + noise * rng.normal(size=(len(label_N), 16))
    return emb_ND.astype(np.float32), label_N


def test_separate_classes_score_one_and_random_ones_near_zero():
    emb_ND = np.repeat(np.eye(6, dtype=np.float32), 10, axis=0)
    label_N = np.repeat([f"domain/{c}" for c in "abcdef"], 10)
    # A random start may put two centres into one class
    assert max(nmi(emb_ND, label_N, seed) for seed in range(30)) == 1.0
    rng = np.random.default_rng(0)
    assert nmi(rng.normal(size=(2000, 16)), rng.integers(4, size=2000)) < 0.01


def test_length_says_nothing():
    emb_ND, label_N = blobs(8, 20, noise=0.8)
    scale_N1 = np.random.default_rng(0).choice([0.5, 1, 4], (len(emb_ND), 1))
    assert nmi(emb_ND * scale_N1, label_N) == nmi(emb_ND, label_N)


def test_large_classes_are_clustered_whole_and_small_ones_without_a_warning(capfd):
    """By default faiss takes 256 images a cluster, which gives another value."""
    emb_ND, label_N = blobs(2, 1500, noise=3.0)
    emb_ND /= np.linalg.norm(emb_ND, axis=1, keepdims=True)
    whole, sampled = (
        normalized_mutual_info_score(
            label_N,
            FaissKMeans(niter=20, seed=0, max_points_per_centroid=most)(
                torch.from_numpy(emb_ND), 2
            ),
        )
        for most in (3000, 256)
    )
    assert nmi(emb_ND, label_N) == pytest.approx(whole, abs=1e-4)
    assert abs(whole - sampled) > 1e-3
    capfd.readouterr()
    nmi(*blobs(50, 2, noise=0.5))
    assert capfd.readouterr() == ("", "")


def test_one_class_or_as_many_as_images():
    emb_ND, label_N = blobs(40, 1, noise=0.0)
    assert nmi(emb_ND, label_N) == pytest.approx(1.0)
    emb_ND[1] = emb_ND[0]
    assert 0.9 < nmi(emb_ND, label_N) < 1.0
    assert nmi(emb_ND, np.zeros(40)) == nmi(np.zeros((3, 4)), ["a"] * 3) == 1.0
