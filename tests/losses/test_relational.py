"""Relations of a student to a teacher against slow twins: values and gradients, borders."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.distillation import Perplexity, RelationConfig
from guie.losses.distillation import Logits, build_relation, kl_of_logits
from guie.losses.matching import ByDimension, PhiS, dropped, hadamard, mean_of
from student_and_teacher import DIM, TEACHER, built, embeddings, unit


def rkd_slowly(ours: Tensor, theirs: Tensor, distance: float, angle: float, penalty: str) -> Tensor:
    """Park et al., eq. 4 to 7, pair by pair and triple by triple."""
    number = len(ours)

    def huber(x: Tensor) -> Tensor:
        if penalty == "l1":
            return x.abs()
        return 0.5 * x**2 if abs(x) <= 1 else abs(x) - 0.5

    pairs = list(itertools.permutations(range(number), 2))
    ours_mean = sum((ours[i] - ours[j]).norm() for i, j in pairs) / len(pairs)
    theirs_mean = sum((theirs[i] - theirs[j]).norm() for i, j in pairs) / len(pairs)
    of_pairs = [
        huber((ours[i] - ours[j]).norm() / ours_mean - (theirs[i] - theirs[j]).norm() / theirs_mean)
        for i, j in pairs
    ]

    def cosine(emb: Tensor, i: int, j: int, k: int) -> Tensor:
        return functional.cosine_similarity(emb[i] - emb[j], emb[k] - emb[j], dim=0)

    triples = itertools.permutations(range(number), 3)
    of_triples = [huber(cosine(ours, *t) - cosine(theirs, *t)) for t in triples]
    return distance * sum(of_pairs) / len(of_pairs) + angle * sum(of_triples) / len(of_triples)


@pytest.mark.parametrize("penalty", ["huber", "l1"])
@pytest.mark.parametrize(("distance", "angle"), [(1.0, 0.0), (0.0, 1.0), (1.0, 2.0)])
def test_rkd_equals_its_twin(distance, angle, penalty) -> None:
    student, teacher = embeddings(6)
    loss = built(name="rkd", distance=distance, angle=angle, penalty=penalty)(
        unit(student), teacher
    )
    expected = rkd_slowly(unit(student), teacher, distance, angle, penalty)
    torch.testing.assert_close(loss, expected)
    got, wanted = (
        torch.autograd.grad(one, student, retain_graph=True)[0] for one in (loss, expected)
    )
    torch.testing.assert_close(got, wanted)


def test_rkd_heeds_no_common_scale() -> None:
    """Distances in units of their mean: a teacher whose images lie half as far apart teaches alike."""
    student, teacher = embeddings(6)
    near = built(name="rkd")(unit(student), teacher)
    torch.testing.assert_close(near, built(name="rkd")(unit(student), teacher / 2))


def test_a_student_like_its_teacher_has_nothing_to_learn() -> None:
    torch.manual_seed(0)
    emb = unit(torch.randn(8, DIM)).requires_grad_()
    for values in (
        {"name": "snd"},
        {"name": "snd", "sigma": {"perplexity": 3}},
        {"name": "rkd", "distance": 1, "angle": 2},
        {"name": "similarity"},
    ):
        config = TypeAdapter(RelationConfig).validate_python(values)
        loss = build_relation(config, DIM, DIM)(emb, emb.detach().clone())
        assert loss.item() == pytest.approx(0, abs=1e-6)
        assert torch.autograd.grad(loss, emb)[0].abs().max() < 1e-5


@pytest.mark.parametrize(
    "values", [{"name": "rkd", "angle": 1}, {"name": "snd"}, {"name": "similarity"}]
)
@pytest.mark.parametrize("images", [0, 1, 2])
def test_too_few_images_are_no_fault(values, images) -> None:
    student, teacher = embeddings(images)
    loss = built(**values)(unit(student), teacher)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, student)[0].isfinite().all()


def test_equal_images_have_finite_gradients() -> None:
    student = torch.ones(4, DIM, requires_grad=True)
    teacher = unit(torch.ones(4, TEACHER))
    for values in (
        {"name": "rkd", "angle": 1.0},
        {"name": "snd"},
        {"name": "snd", "sigma": {"perplexity": 2}},
    ):
        loss = built(**values)(unit(student), teacher)
        assert torch.autograd.grad(loss, student)[0].isfinite().all()


def test_similarity_is_summed_over_a_row() -> None:
    student, teacher = embeddings(4)
    ours, theirs = unit(student) @ unit(student).T, teacher @ teacher.T
    expected = sum((ours[i, j] - theirs[i, j]) ** 2 for i in range(4) for j in range(4)) / 4
    torch.testing.assert_close(built(name="similarity")(unit(student), teacher), expected)


def test_kl_of_logits_is_its_definition() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.randn(3, 4), torch.randn(3, 4)
    p, q = (theirs / 0.1).softmax(1), (ours / 0.1).softmax(1)
    torch.testing.assert_close(kl_of_logits(ours, theirs, 0.1), (p * (p / q).log()).sum(1).mean())


def test_logits_are_of_the_nearest_centre_of_each_class() -> None:
    student, teacher = embeddings(3)
    weight_CkT = torch.randn(4, 2, TEACHER, dtype=torch.float64)
    cosines = torch.stack(
        [torch.stack([max(row @ unit(c).T) for c in weight_CkT]) for row in teacher]
    )
    ours = student @ torch.randn(DIM, 4, dtype=torch.float64)
    loss = Logits(torch.arange(4), weight_CkT, 0.2)(ours, teacher)
    torch.testing.assert_close(loss, kl_of_logits(ours, cosines, 0.2))
    nobody = Logits(torch.arange(4), weight_CkT, 0.2)(ours[:0], teacher[:0])
    assert nobody == 0 and not torch.autograd.grad(nobody, student)[0].any()


@pytest.mark.parametrize("kind", [ByDimension, PhiS])
def test_a_standard_makes_mean_0_and_deviation_1(kind) -> None:
    torch.manual_seed(0)
    feat = torch.randn(4000, 12) @ torch.randn(12, 12) * torch.logspace(-2, 1, 12) + 3
    one = kind(12, steps=4)
    for part in feat.chunk(4):
        assert not one.settled
        one.measure(part)
    assert one.settled
    one.measure(feat * 100)  # it is settled
    mapped = one(feat)
    torch.testing.assert_close(mapped.mean(0), torch.zeros(12), atol=1e-3, rtol=0)
    torch.testing.assert_close(mapped.var(0, correction=0), torch.ones(12), atol=1e-2, rtol=0)
    if kind is PhiS:  # turned and scaled by one number: distances keep their proportions
        apart = torch.pdist(feat[:20]) / torch.pdist(mapped[:20])
        torch.testing.assert_close(apart, apart[:1].expand_as(apart), rtol=1e-3, atol=0)


@pytest.mark.parametrize("size", [1, 2, 12, 64, 192, 384, 768, 1024, 1152, 1280, 1536])
def test_hadamard_matrices_of_towers_features(size) -> None:
    matrix = hadamard(size)
    matrix = matrix.astype(np.float32)  # whole numbers, exact and fast
    assert np.array_equal(matrix @ matrix.T, size * np.eye(size))
    assert set(np.unique(matrix)) <= {1, -1}


def test_a_size_without_a_known_matrix_is_told() -> None:
    with pytest.raises(UserError, match="has no Hadamard matrix of 7 rows"):
        PhiS(7, 10)


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


def test_settings_that_make_no_sense_are_refused() -> None:
    for values, message in (
        ({"name": "snd", "sigma": 0}, "greater than 0"),
        ({"name": "snd", "sigma": {"perplexity": 1}}, "greater than 1"),
        ({"name": "rkd", "distance": 0}, "both 0"),
        ({"name": "matching", "drop": 1.0}, "less than 1"),
    ):
        with pytest.raises(ValueError, match=message):
            TypeAdapter(RelationConfig).validate_python(values)
    assert math.isclose(Perplexity(perplexity=3).perplexity, 3)
