"""Graded rankings against loops over lists."""

import numpy as np
import pytest

from guie.base.errors import UserError
from guie.evaluation.graded import EASY, HARD, JUNK, NEGATIVE, read_grades, revisited

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


def test_scores_by_hand():
    scores = revisited(coded("ene", "nen", "een", "eee"))
    # At rank 0: 1 and 1. At rank 2, after one positive: 1/2 before, 2/3 at it.
    assert scores["easy_ap"] == pytest.approx([(1 + (1 / 2 + 2 / 3) / 2) / 2, 1 / 4, 1, 1])
    # No deeper than the last positive
    assert scores["easy_p_at_10"] == pytest.approx([2 / 3, 1 / 2, 1, 1])
    assert np.isnan(scores["hard_ap"]).all()


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
