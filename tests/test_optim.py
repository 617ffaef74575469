"""Learning rates: stratified by part, a pure function of the step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from guie.config.run import LearningRates, StageConfig
from guie.optim import build_optimizer, freeze, part_of, schedule_factor, set_learning_rates


def task() -> nn.Module:
    parts = {"backbone": nn.Linear(3, 4), "head": nn.LayerNorm(4)}
    return nn.ModuleDict({"embedder": nn.ModuleDict(parts), "classes": nn.Linear(4, 5, bias=False)})


def test_parts_by_name() -> None:
    assert part_of("embedder.backbone.tower.head.weight") == "backbone"
    assert part_of("embedder.head.linear.bias") == "head"
    assert part_of("classes.weight_CD") == "classes"
    with pytest.raises(ValueError, match="none of"):
        part_of("other.weight")


def test_each_part_gets_its_rate_and_vectors_no_decay() -> None:
    stage = StageConfig(
        epochs=1, lr=LearningRates(backbone=1e-5, head=1e-3, classes=1e-2), schedule="constant"
    )
    optimizer = build_optimizer(task(), stage)
    rates = set_learning_rates(optimizer, stage, step=0, total_steps=10)
    assert rates == {"backbone": 1e-5, "head": 1e-3, "classes": 1e-2}
    for group in optimizer.param_groups:
        assert group["lr"] == getattr(stage.lr, group["part"])
        decayed = {parameter.ndim > 1 for parameter in group["params"]}
        assert decayed == {group["weight_decay"] > 0}


def test_a_frozen_part_does_not_move() -> None:
    model = task()
    rates = LearningRates(head=1e-2, classes=1e-2)
    freeze(model, rates)
    stage = StageConfig(epochs=1, lr=rates)
    optimizer = build_optimizer(model, stage)
    before = {name: value.clone() for name, value in model.named_parameters()}
    set_learning_rates(optimizer, stage, 0, 10)
    features = model["embedder"]["head"](model["embedder"]["backbone"](torch.randn(8, 3)))
    model["classes"](features).square().sum().backward()
    optimizer.step()
    moved = {n for n, value in model.named_parameters() if not torch.equal(value, before[n])}
    assert moved == {"embedder.head.weight", "embedder.head.bias", "classes.weight"}


def test_schedules() -> None:
    factors = [schedule_factor("cosine", step, 100, 10) for step in range(100)]
    assert factors[10] == 1.0 and max(factors) == 1.0
    assert all(a < b for a, b in zip(factors[:10], factors[1:11], strict=True))
    assert all(a > b for a, b in zip(factors[10:], factors[11:], strict=False))
    assert 0 < factors[-1] < 0.001
    assert schedule_factor("cosine", 55, 100, 10) == pytest.approx(0.5)
    assert {schedule_factor("constant", step, 100, 0) for step in range(100)} == {1.0}
