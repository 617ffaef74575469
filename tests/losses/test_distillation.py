"""Relations of a student to a teacher against slow twins: values and gradients, borders, memory."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.manifold._utils import _binary_search_perplexity
from torch import Tensor
from torch.nn import functional
from twins import assert_equal

from guie.losses.distillation import (
    Logits,
    log_neighbours,
    precisions_of,
    squared_distances,
)
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
    rkd = built(name="rkd", distance=distance, angle=angle, penalty=penalty)
    expected = rkd_slowly(unit(student), teacher, distance, angle, penalty)
    assert_equal(rkd(unit(student), teacher), expected, student)


RELATIONS = [
    {"name": "rkd", "angle": 1.0},
    {"name": "snd"},
    {"name": "snd", "sigma": {"perplexity": 3}, "queue": 8},
    {"name": "similarity"},
    {"name": "similarity", "balanced": True},
]


@pytest.mark.parametrize("values", RELATIONS, ids=str)
@pytest.mark.parametrize("images", [0, 1, 2, 4])
def test_few_or_equal_images_have_finite_gradients(values: dict, images: int) -> None:
    student, teacher = embeddings(images)
    relation = built(**values)
    relation(*(unit(one) for one in embeddings(6)))  # of which a queue keeps some
    for one, other in ((student, teacher), (student * 0 + 1, teacher * 0 + TEACHER**-0.5)):
        loss = relation(unit(one), other)
        assert loss.isfinite()
        assert torch.autograd.grad(loss, student)[0].isfinite().all()
        assert images or loss == 0


@pytest.mark.parametrize("balanced", [False, True])
def test_similarity_is_summed_over_a_row(balanced: bool) -> None:
    """Balanced, in units of the variance of the teacher's cosines."""
    student, teacher = embeddings(6)
    ours, theirs = unit(student) @ unit(student).T, teacher @ teacher.T
    expected = sum((ours[i, j] - theirs[i, j]) ** 2 for i in range(6) for j in range(6)) / 6
    variance = np.var([theirs[i, j].item() for i, j in itertools.permutations(range(6), 2)])
    found = built(name="similarity", balanced=balanced)(unit(student), teacher)
    assert_equal(found, expected / variance if balanced else expected, student)


def test_logits_are_of_the_nearest_centre_of_each_class() -> None:
    student, teacher = embeddings(3)
    weight_CkT = torch.randn(4, 2, TEACHER, dtype=torch.float64)
    cosines = torch.stack(
        [torch.stack([max(row @ unit(c).T) for c in weight_CkT]) for row in teacher]
    )
    ours = student @ torch.randn(DIM, 4, dtype=torch.float64)
    loss = Logits(torch.arange(4), weight_CkT, 0.2)(ours, teacher)
    p, q = (cosines / 0.2).softmax(1), (ours / 0.2).softmax(1)
    torch.testing.assert_close(loss, (p * (p / q).log()).sum(1).mean())
    nobody = Logits(torch.arange(4), weight_CkT, 0.2)(ours[:0], teacher[:0])
    assert nobody == 0 and not torch.autograd.grad(nobody, student)[0].any()


# SND


def chances(emb: Tensor, sigma: list[float]) -> Tensor:
    """Eq. 2, image by image."""
    rows = []
    for i in range(len(emb)):
        weights = [
            torch.exp(-(emb[i] - emb[j]).square().sum() / (2 * sigma[i] ** 2))
            if j != i
            else emb.new_zeros(())
            for j in range(len(emb))
        ]
        rows.append(torch.stack(weights) / sum(weights))
    return torch.stack(rows)


def snd_slowly(p_ND: Tensor, q_ND: Tensor) -> Tensor:
    """Eq. 4: of the teacher's chances p and the student's q, pair by pair."""
    images, others = p_ND.shape
    pairs = [(i, j) for i in range(images) for j in range(others) if i != j]
    return sum(p_ND[pair] * torch.log(p_ND[pair] / q_ND[pair]) for pair in pairs) / images


@pytest.mark.parametrize(("sigma", "student_sigma"), [(0.5, None), (0.3, 0.7)])
def test_snd_equals_its_twin_and_the_gradient_in_closed_form(sigma, student_sigma) -> None:
    student, teacher = embeddings(6)
    ours = unit(student).detach().requires_grad_()
    loss = built(name="snd", sigma=sigma, student_sigma=student_sigma)(ours, teacher)
    own = student_sigma or sigma
    p, q = chances(teacher, [sigma] * 6), chances(ours, [own] * 6)
    torch.testing.assert_close(loss, snd_slowly(p, q))

    # On the sphere: what points away from it is no difference between the two.
    (got,) = torch.autograd.grad(loss, ours)
    p, q, at = p.detach(), q.detach(), ours.detach()
    step = (p - q) / own**2
    rows = [sum((at[i] - at[j]) * (step[i, j] + step[j, i]) for j in range(6)) for i in range(6)]
    wanted = torch.stack(rows) / 6
    along = [grad - (grad * at).sum(1, keepdim=True) * at for grad in (got, wanted)]
    torch.testing.assert_close(*along)


@pytest.mark.parametrize("perplexity", [1.5, 30.0, 60.0])
def test_the_bandwidth_is_that_of_scikit_learns_search(perplexity) -> None:
    torch.manual_seed(1)
    emb = unit(torch.randn(64, 16, dtype=torch.float64))
    squared = squared_distances(emb, emb[:0])
    found = log_neighbours(squared, precisions_of(squared, perplexity)).exp()
    entropy_bits = -(found * found.clamp(min=1e-300).log2()).sum(1)
    torch.testing.assert_close(2**entropy_bits, torch.full((64,), perplexity, dtype=torch.float64))

    plain = squared.masked_fill(torch.isinf(squared), 0).numpy().astype(np.float32)
    theirs = _binary_search_perplexity(plain, perplexity, 0)  # its own stops at 1e-5 of the entropy
    np.testing.assert_allclose(found.numpy(), theirs, atol=2e-4)


def test_bandwidths_of_a_perplexity_are_each_images_own() -> None:
    student, teacher = embeddings(10)
    snd = built(name="snd", sigma={"perplexity": 3}, student_sigma={"perplexity": 4})
    loss = snd(unit(student), teacher)
    squared = squared_distances(teacher, teacher[:0])
    sigma = (2 * precisions_of(squared, 3)).rsqrt().flatten().tolist()
    ours = squared_distances(unit(student).detach(), student[:0].detach())
    own = (2 * precisions_of(ours, 4)).rsqrt().flatten().tolist()
    assert max(sigma) > 1.05 * min(sigma)
    p, q = chances(teacher, sigma), chances(unit(student), own)
    torch.testing.assert_close(loss, snd_slowly(p, q))


@pytest.mark.parametrize("student_sigma", [None, {"perplexity": 4}])
@pytest.mark.parametrize("whose", ["student", "teacher", "both"])
def test_more_duplicates_than_the_perplexity_leave_the_loss_tame(whose, student_sigma) -> None:
    """None of them is nearer than the others, and no bandwidth has the perplexity."""
    torch.manual_seed(0)
    student, teacher = torch.randn(32, DIM), unit(torch.randn(32, TEACHER))
    if whose != "teacher":
        student[:10] = student[0]
    if whose != "student":
        teacher[:10] = teacher[0]
    student.requires_grad_()
    snd = built(name="snd", sigma={"perplexity": 4}, student_sigma=student_sigma)
    loss = snd(unit(student), teacher)
    assert 0 <= loss.item() < 1e4
    assert torch.autograd.grad(loss, student)[0].abs().max() < 1e4


def test_remembered_images_are_neighbours_without_a_gradient() -> None:
    snd = built(name="snd", sigma=0.5, queue=6).double()
    first, second, third = (embeddings(4, seed) for seed in (1, 2, 3))
    for student, teacher in (first, second):
        snd(unit(student), teacher)
    assert int(snd.memory.filled) == 6  # of 8 the newest
    held = snd.memory.held()
    newest = torch.cat([first[1][2:], second[1]])
    assert {tuple(row) for row in held[1].tolist()} == {tuple(row) for row in newest.tolist()}
    ours = unit(third[0]).detach().requires_grad_()
    loss = snd(ours, third[1])
    both = [torch.cat([one, past]) for one, past in zip((ours, third[1]), held, strict=True)]
    p, q = chances(both[1], [0.5] * 10), chances(both[0], [0.5] * 10)
    torch.testing.assert_close(loss, snd_slowly(p[:4], q[:4]))
    before = {name: value.clone() for name, value in snd.state_dict().items()}
    snd.eval()(unit(third[0]), third[1])
    assert all(torch.equal(value, snd.state_dict()[name]) for name, value in before.items())
