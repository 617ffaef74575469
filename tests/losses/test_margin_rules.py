"""Margins: the angular margin's shape, schedules, class sizes."""

from __future__ import annotations

import math

import pytest
import torch

from guie.config.losses import ClassSizeMargin, MarginSchedule
from guie.losses import ArcFace, CosFace
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import add_angular_margin, class_size_margins, scheduled_margin

HALF = torch.tensor(0.5)


def test_gradient_matches_finite_differences() -> None:
    cos = torch.linspace(-0.99, 0.99, 41, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c: add_angular_margin(c, HALF.double()), cos)


@pytest.mark.parametrize("cos", [-1.0, 1.0, 1.0000001, 0.0])
def test_gradients_are_finite_at_the_ends(cos: float) -> None:
    value = torch.tensor([cos], requires_grad=True)
    out = add_angular_margin(value, HALF)
    out.backward()
    assert torch.isfinite(out).all() and torch.isfinite(value.grad).all()


def test_margin_makes_the_target_harder_everywhere() -> None:
    cos = torch.linspace(-1, 1, 2001)
    shifted = add_angular_margin(cos, HALF)
    assert (shifted[1:-1] < cos[1:-1]).all()
    # one cosine beyond the fold the line takes over; within each piece it rises with the cosine
    fold = cos > -math.cos(0.5)
    assert (shifted[fold].diff() > 0).all() and (shifted[~fold].diff() > 0).all()


def test_the_second_place_schedule() -> None:
    stairs = MarginSchedule(start=0.3, rise_per_epoch=0.1, limit=0.8, every="epoch")
    assert [scheduled_margin(stairs, e) for e in (0, 0.99, 1, 4.5, 5, 9)] == pytest.approx(
        [0.3, 0.3, 0.4, 0.7, 0.8, 0.8]
    )
    ramp = MarginSchedule(start=0.0, rise_per_epoch=0.2, limit=0.5)
    assert [scheduled_margin(ramp, e) for e in (0, 0.5, 2, 3)] == pytest.approx([0, 0.1, 0.4, 0.5])


@pytest.mark.parametrize("rule", [ArcFace, CosFace])
def test_a_schedule_sets_the_margin_and_is_no_state(rule: type) -> None:
    torch.manual_seed(0)
    schedule = MarginSchedule(start=0.1, rise_per_epoch=0.2, limit=0.5)
    head = MarginSoftmax(6, 4, rule(schedule), scale=20.0)
    fixed = MarginSoftmax(6, 4, rule(0.4), scale=20.0)
    fixed.load_state_dict(head.state_dict())
    emb = torch.nn.functional.normalize(torch.randn(8, 4), dim=-1)
    labels = torch.randint(6, (8,))
    before = head(emb, labels)[0].item()
    head.set_epoch(1.5)
    assert head(emb, labels)[0].item() == pytest.approx(fixed(emb, labels)[0].item(), rel=1e-6)
    head.set_epoch(0.0)
    assert head(emb, labels)[0].item() == before
    fixed.set_epoch(3.0)  # a fixed margin stays
    assert fixed.rule.margin_C.item() == pytest.approx(0.4)
    assert set(head.state_dict()) == {"weight_CD"}


def test_a_stage_may_have_a_margin_of_its_own() -> None:
    rule = ArcFace(MarginSchedule(start=0.1, rise_per_epoch=0.1, limit=0.5))
    label_B = torch.tensor([0])
    rule.set_margin(0.4)
    rule.set_epoch(1.0)  # the schedule rests
    assert rule.margin(label_B).item() == pytest.approx(0.4)
    rule.set_margin(None)
    assert rule.margin(label_B).item() == pytest.approx(0.1)
    rule.set_epoch(1.0)
    assert rule.margin(label_B).item() == pytest.approx(0.2)
    by_class = ArcFace(torch.tensor([0.1, 0.3]))
    by_class.set_margin(0.5)
    assert by_class.margin(torch.tensor([0, 1])).tolist() == [0.5, 0.5]
    by_class.set_margin(None)
    assert by_class.margin(torch.tensor([0, 1])).tolist() == pytest.approx([0.1, 0.3])


def test_class_size_margins() -> None:
    sizes = [1, 16, 81, 256, 0]
    margins = class_size_margins(sizes, ClassSizeMargin(least=0.05, most=0.5))
    rarity = [1, 1 / 2, 1 / 3, 1 / 4, 1]  # n ** -1/4
    expected = [0.05 + (r - 1 / 4) / (3 / 4) * 0.45 for r in rarity]
    assert margins.tolist() == pytest.approx(expected)
    # the fourth place's own formula, sqrt(1 / sqrt(n)) stretched
    assert margins.dtype == torch.float32
    alike = class_size_margins([7, 7], ClassSizeMargin(least=0.05, most=0.5))
    assert alike.tolist() == pytest.approx([0.5, 0.5])
