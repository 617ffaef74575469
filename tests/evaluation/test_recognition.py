"""GAP and accuracy against loops that follow the definitions word by word."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import FaissKMeans

from guie.evaluation import recognition
from guie.evaluation.recognition import nmi


def gap(*columns):
    return recognition.gap(*map(np.array, columns))


def gap_minus(confidence_Q, is_correct_Q, has_answer_Q):
    is_correct_Q, has_answer_Q = np.array(is_correct_Q, bool), np.array(has_answer_Q, bool)
    return recognition.gap_minus(np.array(confidence_Q), is_correct_Q, has_answer_Q)


def accuracy(is_correct_Q, has_answer_Q):
    return recognition.accuracy(np.array(is_correct_Q, bool), np.array(has_answer_Q, bool))


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


def blobs(classes, size, noise, seed=0, dimensions=16):
    rng = np.random.default_rng(seed)
    label_N = np.repeat(np.arange(classes), size)
    centre_CD = rng.normal(size=(classes, dimensions))
    emb_ND = centre_CD[label_N] + noise * rng.normal(size=(len(label_N), dimensions))
    return emb_ND.astype(np.float32), label_N


def slow_nmi(class_N, cluster_N):
    """2 I / (H + H) by counting."""
    n = len(class_N)

    def entropy(names):
        return -sum(c / n * math.log(c / n) for c in Counter(names).values())

    of_class, of_cluster = Counter(class_N), Counter(cluster_N)
    shared = sum(
        both / n * math.log(n * both / (of_class[a] * of_cluster[b]))
        for (a, b), both in Counter(zip(class_N, cluster_N, strict=True)).items()
    )
    return 2 * shared / (entropy(class_N) + entropy(cluster_N))


def test_separate_classes_score_one():
    emb_ND = np.repeat(np.eye(6, dtype=np.float32), 10, axis=0)
    label_N = np.repeat([f"domain/{c}" for c in "abcdef"], 10)
    for seed in range(30):  # a random start may put two centres into one class
        if nmi(emb_ND, label_N, seed) == 1.0:
            break
    else:
        pytest.fail("no seed found six classes that could not be further apart")


def test_two_far_classes_score_one_for_any_seed():
    emb_ND, label_N = blobs(2, 40, noise=0.1)
    assert [nmi(emb_ND, label_N, seed) for seed in range(5)] == [1.0] * 5


def test_random_embeddings_score_near_zero():
    rng = np.random.default_rng(0)
    label_N = rng.integers(4, size=2000)
    assert nmi(rng.normal(size=(2000, 16)), label_N) < 0.01


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
def test_value_equals_the_peer_s(noise):
    """Given the same seed and iterations, to the rounding of float32; its clusters by hand too."""
    emb_ND, label_N = blobs(20, 30, noise)
    unit_ND = torch.nn.functional.normalize(torch.from_numpy(emb_ND))
    kmeans = FaissKMeans(niter=20, seed=3, min_points_per_centroid=1)
    peer = AccuracyCalculator(include=("NMI",), kmeans_func=kmeans)
    labels_N = torch.from_numpy(label_N)
    expected = peer.get_accuracy(unit_ND, labels_N, unit_ND, labels_N)["NMI"]
    assert nmi(emb_ND, label_N, seed=3) == pytest.approx(expected, abs=0.005)
    by_hand = slow_nmi(label_N.tolist(), kmeans(unit_ND, 20).tolist())
    assert by_hand == pytest.approx(expected)


def test_length_says_nothing():
    emb_ND, label_N = blobs(8, 20, noise=0.8)
    scale_N1 = np.random.default_rng(0).choice([0.5, 1, 4], (len(emb_ND), 1))
    assert nmi(emb_ND * scale_N1, label_N) == nmi(emb_ND, label_N)


def test_the_seed_decides():
    emb_ND, label_N = blobs(30, 10, noise=1.0)
    assert nmi(emb_ND, label_N, seed=1) == nmi(emb_ND, label_N, seed=1)
    assert len({nmi(emb_ND, label_N, seed=seed) for seed in range(5)}) > 1


def test_large_classes_are_clustered_whole():
    """faiss alone would take 256 images a cluster: another value."""
    emb_ND, label_N = blobs(2, 1500, noise=3.0)
    emb_ND /= np.linalg.norm(emb_ND, axis=1, keepdims=True)
    values = []
    for points in (3000, 256):
        kmeans = FaissKMeans(niter=20, seed=0, max_points_per_centroid=points)
        values.append(slow_nmi(label_N.tolist(), kmeans(torch.from_numpy(emb_ND), 2).tolist()))
    assert nmi(emb_ND, label_N) == pytest.approx(values[0], abs=1e-4)
    assert abs(values[0] - values[1]) > 1e-3


def test_small_classes_raise_no_warning(capfd):
    nmi(*blobs(50, 2, noise=0.5))
    assert capfd.readouterr() == ("", "")


def test_as_many_classes_as_images():
    emb_ND, _ = blobs(40, 1, noise=0.0)
    assert nmi(emb_ND, np.arange(40)) == pytest.approx(1.0)
    emb_ND[1] = emb_ND[0]
    assert 0.9 < nmi(emb_ND, np.arange(40)) < 1.0


def test_one_class_is_one_cluster():
    emb_ND, label_N = blobs(1, 10, noise=1.0)
    assert nmi(emb_ND, label_N) == 1.0
    assert nmi(np.zeros((3, 4)), ["a"] * 3) == 1.0
