"""The margin softmax against a slow twin that computes with angles."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from guie.losses import MarginSoftmax
from guie.losses.margin import add_angular_margin


def slow_loss(emb, weight, labels, scale: float, margin_rad: float) -> float:
    """ArcFace from its definition: angles, one logit at a time, in Python floats."""
    total = 0.0
    for x, label in zip(emb.double(), labels.tolist(), strict=True):
        logits = []
        for number, w in enumerate(weight.double()):
            cos = float(torch.dot(x / x.norm(), w / w.norm()))
            theta = math.acos(max(-1.0, min(1.0, cos)))
            if number == label:
                wrapped = theta + margin_rad > math.pi
                line = cos - margin_rad * math.sin(margin_rad)
                cos = line if wrapped else math.cos(theta + margin_rad)
            logits.append(scale * cos)
        peak = max(logits)
        total += peak + math.log(sum(math.exp(z - peak) for z in logits)) - logits[label]
    return total / len(labels)


@pytest.mark.parametrize("margin_rad", [0.0, 0.3, 0.8])
def test_loss_equals_the_slow_twin(margin_rad: float) -> None:
    torch.manual_seed(0)
    loss_head = MarginSoftmax(7, 5, scale=16.0, margin_rad=margin_rad)
    emb = functional.normalize(torch.randn(9, 5), dim=-1)
    labels = torch.randint(7, (9,))
    loss, _ = loss_head(emb, labels)
    expected = slow_loss(emb, loss_head.weight_CD.detach(), labels, 16.0, margin_rad)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_gradient_matches_finite_differences() -> None:
    torch.manual_seed(1)
    cos = torch.linspace(-0.99, 0.99, 41, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c: add_angular_margin(c, 0.5), cos)


@pytest.mark.parametrize("cos", [-1.0, 1.0, 1.0000001, 0.0])
def test_gradients_are_finite_at_the_ends(cos: float) -> None:
    value = torch.tensor([cos], requires_grad=True)
    out = add_angular_margin(value, 0.5)
    out.backward()
    assert torch.isfinite(out).all() and torch.isfinite(value.grad).all()


def test_loss_and_gradients_are_finite_on_a_perfect_match() -> None:
    loss_head = MarginSoftmax(3, 4, scale=64.0, margin_rad=0.5)
    emb = functional.normalize(loss_head.weight_CD.detach(), dim=-1).requires_grad_()
    loss, _ = loss_head(emb, torch.tensor([0, 1, 2]))
    loss.backward()
    assert torch.isfinite(emb.grad).all() and torch.isfinite(loss_head.weight_CD.grad).all()


def test_margin_makes_the_target_harder_everywhere() -> None:
    cos = torch.linspace(-1, 1, 2001)
    shifted = add_angular_margin(cos, 0.5)
    assert (shifted[1:-1] < cos[1:-1]).all()
    # one cosine beyond the fold the line takes over; within each piece it rises with the cosine
    fold = cos > -math.cos(0.5)
    assert (shifted[fold].diff() > 0).all() and (shifted[~fold].diff() > 0).all()


def test_computes_in_fp32_under_autocast_and_keeps_its_weights() -> None:
    torch.manual_seed(2)
    loss_head = MarginSoftmax(50, 8, scale=30.0, margin_rad=0.3)
    emb, labels = functional.normalize(torch.randn(4, 8), dim=-1), torch.arange(4)
    expected, _ = loss_head(emb, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, cos = loss_head(emb, labels)
    assert loss.dtype == cos.dtype == loss_head.weight_CD.dtype == torch.float32
    assert loss.item() == expected.item()


def test_without_margin_and_scale_the_start_is_log_classes() -> None:
    loss_head = MarginSoftmax(1000, 64, scale=1e-3, margin_rad=0.0)
    emb = functional.normalize(torch.randn(16, 64), dim=-1)
    loss, _ = loss_head(emb, torch.arange(16))
    assert loss.item() == pytest.approx(math.log(1000), abs=0.01)
