"""The classifier and its metrics against loops that follow the definitions word by word."""

import math

import numpy as np
import pytest

from guie.evaluation.recognition import accuracy, classify, gap, gap_minus


def slow_classify(similarities, classes, temperature, class_count):
    """One query: every class of the index in one softmax, those without a neighbour at 0."""
    best = [0.0] * class_count
    for similarity, name in zip(similarities, classes, strict=True):
        best[name] = max(best[name], similarity)
    if temperature is None:
        return best.index(max(best)), max(best)
    powers = [math.exp(similarity / temperature) for similarity in best]
    return powers.index(max(powers)), max(powers) / sum(powers)


def slow_gap(confidences, correct, answers):
    order = sorted(range(len(confidences)), key=lambda row: (-confidences[row], row))
    total = 0.0
    for i in range(1, len(order) + 1):
        if correct[order[i - 1]]:
            total += sum(correct[row] for row in order[:i]) / i
    return total / sum(answers)


def neighbours(queries=50, k=10, class_count=30, seed=0):
    rng = np.random.default_rng(seed)
    similarity_QK = -np.sort(-rng.uniform(0.05, 1, (queries, k)), axis=1)
    return similarity_QK, rng.integers(class_count, size=(queries, k))


def answered(queries=80, seed=0, levels=9):
    """Answers with tied confidences; a third of the queries are distractors."""
    rng = np.random.default_rng(seed)
    has_answer_Q = rng.random(queries) < 0.67
    is_correct_Q = has_answer_Q & (rng.random(queries) < 0.6)
    return rng.integers(levels, size=queries) / levels, is_correct_Q, has_answer_Q


@pytest.mark.parametrize("temperature", [None, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("k", [1, 3, 10, 99])
def test_classes_equal_their_slow_twin(k, temperature):
    similarity_QK, class_QK = neighbours()
    class_Q, confidence_Q = classify(similarity_QK, class_QK, k, temperature, 30)
    slow = [
        slow_classify(s[:k], c[:k], temperature, 30)
        for s, c in zip(similarity_QK.tolist(), class_QK.tolist(), strict=True)
    ]
    assert class_Q.tolist() == [name for name, _ in slow]
    np.testing.assert_allclose(confidence_Q, [confidence for _, confidence in slow], rtol=1e-9)


def test_the_nearest_names_the_class_and_the_others_doubt_it():
    similarity_QK = np.array([[0.9, 0.8, 0.8], [0.9, 0.8, 0.8]])
    class_QK = np.array([[4, 4, 4], [4, 7, 7]])
    class_Q, confidence_Q = classify(similarity_QK, class_QK, 3, 0.1, class_count=100)
    assert class_Q.tolist() == [4, 4]
    alone, doubted = confidence_Q
    assert alone == pytest.approx(math.exp(9) / (math.exp(9) + 99))
    assert doubted == pytest.approx(math.exp(9) / (math.exp(9) + math.exp(8) + 98))


def test_small_temperatures_do_not_overflow():
    _, confidence_Q = classify([[1.0, 0.5]], [[0, 1]], 2, temperature=1e-4, class_count=10**6)
    assert confidence_Q.tolist() == [1.0]


def test_a_missing_neighbour_counts_nothing():
    similarity_QK, class_QK = np.array([[0.7, 0.2], [0.9, 0.9]]), np.array([[3, -1], [-1, -1]])
    for temperature in (None, 0.1):
        class_Q, confidence_Q = classify(similarity_QK, class_QK, 2, temperature, 20)
        alone = classify(similarity_QK[:1, :1], class_QK[:1, :1], 1, temperature, 20)
        assert class_Q.tolist() == [3, -1]
        assert confidence_Q.tolist() == [alone[1][0], -np.inf]


def test_neighbours_without_similarity_are_as_unlikely_as_any_class():
    _, confidence_Q = classify([[-0.1, -0.4]], [[0, 1]], 2, temperature=0.1, class_count=50)
    assert confidence_Q.tolist() == pytest.approx([1 / 50])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.9]], [[0, 1]]), "shapes must be equal"),
        (([[0.9]], [[0]], 0), "k = 0"),
        (([[0.8, 0.9]], [[0, 1]], 2), "best first"),
        (([[0.9, 0.8]], [[-1, 1]], 2), "best first"),
        (([[np.nan]], [[0]]), "best first"),
        (([[0.9]], [[0]], 1, 0.0, 5), "temperature is 0"),
        (([[0.9]], [[0]], 1, 0.1), "class_count is None"),
        (([[0.9, 0.8]], [[0, 1]], 2, 0.1, 1), "class_count is 1"),
    ],
)
def test_neighbours_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        classify(*arguments)


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
