"""Matching a teacher's features: their standard, Hadamard matrices, teachers that are dropped."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.distillation import DimensionConfig, PhiSConfig
from guie.losses.matching import Standardiser, dropped, hadamard, mean_of
from student_and_teacher import DIM, TEACHER, built, unit


@pytest.mark.parametrize(
    "config",
    [DimensionConfig(steps=4), PhiSConfig(name="phi_s", steps=4)],
    ids=["dimension", "phi_s"],
)
def test_a_standard_makes_mean_0_and_deviation_1(config) -> None:
    torch.manual_seed(0)
    feat = torch.randn(4000, 12) @ torch.randn(12, 12) * torch.logspace(-2, 1, 12) + 3
    one = Standardiser(12, config)
    one.measure(feat[:0])  # without images of the teacher: not counted
    for part in feat.chunk(4):
        assert not one.settled
        one.measure(part)
    assert one.settled
    one.measure(feat * 100)  # it is settled
    mapped = one(feat)
    torch.testing.assert_close(mapped.mean(0), torch.zeros(12), atol=1e-3, rtol=0)
    torch.testing.assert_close(mapped.var(0, correction=0), torch.ones(12), atol=1e-2, rtol=0)
    if one.rotates:  # turned and scaled by one number: distances keep their proportions
        apart = torch.pdist(feat[:20]) / torch.pdist(mapped[:20])
        torch.testing.assert_close(apart, apart[:1].expand_as(apart), rtol=1e-3, atol=0)


@pytest.mark.parametrize("size", [1, 2, 12, 64, 192, 384, 768, 1024, 1152, 1280, 1536])
def test_hadamard_matrices_of_towers_features(size) -> None:
    matrix = hadamard(size)
    matrix = matrix.astype(np.float32)  # whole numbers, exact and fast
    assert np.array_equal(matrix @ matrix.T, size * np.eye(size))
    assert set(np.unique(matrix)) <= {1, -1}
    if size == 12:  # a resumed run turns the teacher's features as it did before
        assert matrix[1].tolist() == [-1, 1, -1, 1, -1, -1, -1, 1, 1, 1, -1, 1]


def test_a_size_without_a_known_matrix_is_told() -> None:
    with pytest.raises(UserError, match="has no Hadamard matrix of 7 rows"):
        Standardiser(7, PhiSConfig(name="phi_s"))


def test_matching_waits_until_the_teacher_is_measured() -> None:
    torch.manual_seed(0)
    match = built(name="matching", standardise={"name": "dimension", "steps": 2})
    student, teacher = unit(torch.randn(6, DIM)), unit(torch.randn(6, TEACHER))
    assert match(student, teacher).tolist() == [0.0] * 6
    apart = match(student, teacher)
    target = (teacher - teacher.mean(0)) / teacher.std(0, correction=0)
    head = match.head(student)
    cosine = 1 - functional.cosine_similarity(head, target, dim=1)
    smooth = functional.smooth_l1_loss(head, target, reduction="none").mean(1)
    torch.testing.assert_close(apart, 0.5 * cosine + 0.5 * smooth, atol=1e-4, rtol=1e-4)


def test_the_worst_matched_teacher_stays() -> None:
    torch.manual_seed(0)
    apart = torch.rand(2000, 3)
    taught = torch.rand(2000, 3) < 0.8
    weight = dropped(apart, taught, 0.5)
    some = taught.any(1)
    torch.testing.assert_close(weight.sum(1), some.float())
    assert not weight[~taught].any()
    worst = apart.masked_fill(~taught, -1).argmax(1)
    assert (weight[some, worst[some]] > 0).all()
    others = taught.clone()
    others[torch.arange(2000), worst] = False
    assert (weight[others] > 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(dropped(apart, taught, 0.0) > 0, taught)


def test_images_count_once_however_many_teach_them() -> None:
    taught = [torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])]
    apart = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])]
    assert mean_of(apart, taught, 0.0).item() == pytest.approx((2.0 + 2.0 + 5.0) / 3)
