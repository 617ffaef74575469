"""SND against slow twins: values and gradients, bandwidths, memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn.manifold._utils import _binary_search_perplexity
from torch import Tensor

from guie.losses.distillation import log_neighbours, precisions_of, squared_distances
from student_and_teacher import DIM, TEACHER, built, embeddings, unit


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


@pytest.mark.parametrize(("sigma", "student_sigma"), [(0.5, None), (0.3, 0.7)])
def test_snd_equals_its_twin_and_the_gradient_in_closed_form(sigma, student_sigma) -> None:
    student, teacher = embeddings(6)
    ours = unit(student).detach().requires_grad_()
    loss = built(name="snd", sigma=sigma, student_sigma=student_sigma)(ours, teacher)
    own = student_sigma or sigma
    p, q = chances(teacher, [sigma] * 6), chances(ours, [own] * 6)
    apart = [p[i, j] * torch.log(p[i, j] / q[i, j]) for i, j in itertools.permutations(range(6), 2)]
    torch.testing.assert_close(loss, sum(apart) / 6)

    # On the sphere: what points away from it is no difference between the two.
    (got,) = torch.autograd.grad(loss, ours)
    p, q, at = p.detach(), q.detach(), ours.detach()
    step = (p - q) / own**2
    wanted = (
        torch.stack(
            [sum((at[i] - at[j]) * (step[i, j] + step[j, i]) for j in range(6)) for i in range(6)]
        )
        / 6
    )
    along = [grad - (grad * at).sum(1, keepdim=True) * at for grad in (got, wanted)]
    torch.testing.assert_close(*along)


@pytest.mark.parametrize("perplexity", [1.5, 5.0, 30.0, 60.0])
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


def test_more_neighbours_than_there_are_makes_all_alike() -> None:
    emb = unit(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    squared = squared_distances(emb, emb[:0])
    found = log_neighbours(squared, precisions_of(squared, 50.0)).exp()
    torch.testing.assert_close(found, (torch.ones(4, 4) - torch.eye(4)) / 3)


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
    apart = [
        p[i, j] * torch.log(p[i, j] / q[i, j]) for i, j in itertools.permutations(range(10), 2)
    ]
    torch.testing.assert_close(loss, sum(apart) / 10)


def test_remembered_images_are_neighbours_without_a_gradient() -> None:
    snd = built(name="snd", sigma=0.5, queue=6).double()
    first, second, third = (embeddings(4, seed) for seed in (1, 2, 3))
    for student, teacher in (first, second):
        snd(unit(student), teacher)
    assert int(snd.memory.filled) == 6  # of 8 the newest
    held = snd.memory.held()
    ours = unit(third[0]).detach().requires_grad_()
    loss = snd(ours, third[1])
    both = [torch.cat([one, past]) for one, past in zip((ours, third[1]), held, strict=True)]
    p, q = chances(both[1], [0.5] * 10), chances(both[0], [0.5] * 10)
    pairs = [(i, j) for i in range(4) for j in range(10) if i != j]
    torch.testing.assert_close(
        loss, sum(p[i, j] * torch.log(p[i, j] / q[i, j]) for i, j in pairs) / 4
    )
    before = {name: value.clone() for name, value in snd.state_dict().items()}
    snd.eval()(unit(third[0]), third[1])
    assert all(torch.equal(value, snd.state_dict()[name]) for name, value in before.items())


def test_the_memory_keeps_the_newest_in_turn() -> None:
    snd = built(name="snd", queue=5)
    for start in range(0, 21, 3):
        rows = torch.arange(start, start + 3.0)[:, None]
        snd.memory.add(rows.expand(3, DIM), rows.expand(3, TEACHER))
    held = snd.memory.held()
    assert sorted(held[0][:, 0].tolist()) == sorted(held[1][:, 0].tolist()) == [16, 17, 18, 19, 20]


def test_a_batch_without_a_teachers_images_asks_nothing_of_its_memory() -> None:
    snd = built(name="snd", queue=8)
    student, teacher = embeddings(6)
    snd(unit(student), teacher)
    loss = snd(unit(student)[:0], teacher[:0])
    assert loss.item() == 0
    assert torch.autograd.grad(loss, student)[0].isfinite().all()
    assert snd.memory.filled == 6
