"""Learning rates: stratified by part, a pure function of the step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from torch import nn

from guie.config.model import BackboneConfig
from guie.config.stages import ConstantSchedule, CosineSchedule, LearningRates, StageConfig
from guie.model.backbone import create_clip
from guie.optim import (
    block_of,
    build_optimizer,
    freeze,
    part_of,
    schedule_factor,
    set_learning_rates,
)


def task() -> nn.Module:
    parts = {"backbone": nn.Linear(3, 4), "head": nn.LayerNorm(4)}
    return nn.ModuleDict({"embedder": nn.ModuleDict(parts), "classes": nn.Linear(4, 5, bias=False)})


def test_parts_by_name() -> None:
    assert part_of("embedder.backbone.tower.head.weight") == "backbone"
    assert part_of("embedder.head.linear.bias") == "head"
    assert part_of("classes.weight_CD") == "classes"
    with pytest.raises(ValueError, match="none of"):
        part_of("other.weight")


@pytest.mark.parametrize(
    ("tower", "blocks", "expected"),
    [
        (
            lambda: timm.create_model("test_vit", num_classes=0),
            6,
            {"cls_token": 0, "patch_embed.proj.weight": 0, "blocks.0.attn.qkv.weight": 1}
            | {"blocks.5.norm1.weight": 6, "norm.weight": 6},
        ),
        (
            lambda: create_clip(BackboneConfig(library="open_clip", name="guie-tiny"), None).visual,
            None,
            {"conv1.weight": 0, "class_embedding": 0, "ln_pre.weight": 0, "proj": -1}
            | {"transformer.resblocks.0.ln_1.weight": 1, "ln_post.weight": -1},
        ),
    ],
    ids=["timm", "open_clip"],
)
def test_layer_decay_falls_towards_the_stem(
    tower: Callable[[], nn.Module], blocks: int | None, expected: dict[str, int]
) -> None:
    whole = nn.ModuleDict({"backbone": nn.ModuleDict({"tower": tower()}), "head": nn.Linear(2, 2)})
    names = {p: n.removeprefix("backbone.tower.") for n, p in whole.named_parameters()}
    rates = LearningRates(backbone=1.0, head=1.0)
    optimizer = build_optimizer(whole, StageConfig(epochs=1, lr=rates, layer_decay=0.5))
    rate = {names[p]: g["peak_lr"] for g in optimizer.param_groups for p in g["params"]}
    if blocks is None:
        blocks = 1 + max(block_of("." + name) or 0 for name in names.values())
    for name, height in expected.items():
        assert rate[name] == 0.5 ** (blocks - height if height >= 0 else 0), name
    assert rate["head.weight"] == 1.0
    logged = set_learning_rates(optimizer, StageConfig(epochs=1, lr=rates), 0, 1)
    assert logged == {"backbone": 1.0, "head": 1.0}


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
    factors = [schedule_factor(CosineSchedule(), step, 100, 10) for step in range(100)]
    assert factors[10] == 1.0 and max(factors) == 1.0
    assert all(a < b for a, b in zip(factors[:10], factors[1:11], strict=True))
    assert all(a > b for a, b in zip(factors[10:], factors[11:], strict=False))
    assert 0 < factors[-1] < 0.001
    assert schedule_factor(CosineSchedule(), 55, 100, 10) == pytest.approx(0.5)
    assert {
        schedule_factor(ConstantSchedule(name="constant"), step, 100, 0) for step in range(100)
    } == {1.0}
