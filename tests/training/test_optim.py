"""Optimisers: rates and decay by part, by block, by depth; what is frozen keeps its bits."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import timm
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from guie.base.errors import UserError
from guie.config.model import BackboneConfig
from guie.config.stages import LearningRates, StageConfig, WeightDecays
from guie.models.backbones.open_clip import create_clip
from guie.models.backbones.timm import Timm
from guie.training.optim import (
    build_optimizer,
    create_optimizer,
    freeze,
    refuse_unknown_blocks,
    set_learning_rates,
)
from guie.training.sharding import continue_optimizer, load_optimizer, optimizer_state
from tiny_runs import Parts


def task(**more: nn.Module) -> Parts:
    parts = {"backbone": nn.Linear(3, 4), "head": nn.LayerNorm(4)}
    return Parts({**parts, "classes": nn.Linear(4, 5, bias=False), **more})


def test_any_part_that_a_task_declares_has_a_rate_of_its_own() -> None:
    model = task(adapters=nn.Linear(4, 2))
    stage = StageConfig.model_validate(
        {"epochs": 1, "lr": {"adapters": 0.5, "head": 0.1}, "weight_decay": {"adapters": 0.2}}
    )
    freeze(model, stage.lr)
    groups = {(g["part"], g["peak_lr"], g["weight_decay"]) for g in _groups(model, stage)}
    assert groups == {("adapters", 0.5, 0.2), ("adapters", 0.5, 0.0), ("head", 0.1, 0.0)}


def _groups(model: Parts, stage: StageConfig) -> list[dict]:
    return build_optimizer(model, stage).param_groups


def test_a_parameter_outside_of_all_parts_is_an_error() -> None:
    class Loose(Parts):
        def parts(self) -> dict[str, dict[str, nn.Parameter]]:
            parts = super().parts()
            return {name: parts[name] for name in ("backbone", "head")}

    with pytest.raises(ValueError, match="classes.weight belongs to none of"):
        freeze(Loose(task()), LearningRates(head=1.0))


def test_each_part_gets_its_rate_and_vectors_no_decay() -> None:
    stage = StageConfig(
        epochs=1, lr=LearningRates(backbone=1e-5, head=1e-3, classes=1e-2), schedule="constant"
    )
    optimizer = build_optimizer(task(), stage)
    rates = set_learning_rates(optimizer, stage, step=0, total_steps=10)
    assert rates == {"backbone": 1e-5, "head": 1e-3, "classes": 1e-2}
    for group in optimizer.param_groups:
        assert group["lr"] == stage.lr.of(group["part"])
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
    features = model["head"](model["backbone"](torch.randn(8, 3)))
    model["classes"](features).square().sum().backward()
    optimizer.step()
    moved = {n for n, value in model.named_parameters() if not torch.equal(value, before[n])}
    assert moved == {"head.weight", "head.bias", "classes.weight"}


def vit() -> nn.Module:
    """A task whose backbone is a ViT of six blocks."""
    tower = timm.create_model("test_vit", num_classes=0)
    return Parts({"backbone": nn.ModuleDict({"tower": tower}), "head": nn.Linear(64, 2)})


def efficientnet() -> nn.Module:
    tower = timm.create_model("test_efficientnet", num_classes=0)
    return Parts({"backbone": nn.ModuleDict({"tower": tower})})


def clip() -> nn.Module:
    """Both towers, as the contrastive task has them."""
    config = BackboneConfig(library="open_clip", name="guie-tiny")
    return Parts({"backbone": create_clip(config, None)})


def peak_rates(model: nn.Module, stage: StageConfig) -> dict[str, float]:
    """The rate of every parameter, without what its name has in common with all others."""
    optimizer = build_optimizer(model, stage)
    rate_of = {p: group["peak_lr"] for group in optimizer.param_groups for p in group["params"]}
    names = {name: p for name, p in model.named_parameters() if p in rate_of}
    return {
        n.removeprefix("backbone.").removeprefix("tower."): rate_of[p] for n, p in names.items()
    }


BLOCKS = {
    "timm": (
        vit,
        {0: 0.1, 4: 0.2},
        {"cls_token": 0.1, "patch_embed.proj.weight": 0.1, "blocks.0.norm1.bias": 0.1}
        | {"blocks.3.mlp.fc1.weight": 0.1, "blocks.4.mlp.fc1.weight": 0.2}
        | {"blocks.5.norm1.weight": 0.2, "norm.weight": 1.0, "head.weight": 3.0},
    ),
    "below the first": (
        vit,
        {2: 0.2},
        {"pos_embed": 1.0, "blocks.1.norm1.bias": 1.0, "blocks.2.norm1.bias": 0.2},
    ),
    "open_clip": (
        clip,
        {0: 0.1},
        {"visual.conv1.weight": 0.1, "visual.transformer.resblocks.1.ln_1.bias": 0.1}
        | {"visual.ln_post.weight": 1.0, "visual.proj": 1.0, "token_embedding.weight": 0.1}
        | {"ln_final.weight": 1.0, "text_projection": 1.0, "logit_scale": 1.0},
    ),
    "convolutions": (
        efficientnet,
        {0: 0.1},
        {"conv_stem.weight": 0.1, "bn1.weight": 0.1, "blocks.0.0.conv.weight": 0.1}
        | {"conv_head.weight": 1.0, "bn2.weight": 1.0},
    ),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_rates_by_block(case: str) -> None:
    model, blocks, expected = BLOCKS[case]
    lr = LearningRates(backbone=1.0, head=3.0, blocks=blocks)
    rates = peak_rates(model(), StageConfig(epochs=1, lr=lr))
    assert {name: rates[name] for name in expected} == expected


def test_frozen_blocks_keep_their_bits_and_the_rest_moves() -> None:
    model = vit()
    lr = LearningRates(head=1e-2, blocks={0: 0.0, 4: 1e-2})
    freeze(model, lr)
    stage = StageConfig(epochs=1, lr=lr, optimizer="sgd", schedule="constant")
    before = copy.deepcopy(model.state_dict())
    step(model, build_optimizer(model, stage), stage)
    moved = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert {Timm.block_of(name) for name in moved if "blocks" in name} == {4, 5}
    assert {name for name in moved if "blocks" not in name} == {"head.weight", "head.bias"}
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == moved


def step(model: nn.Module, optimizer: torch.optim.Optimizer, stage: StageConfig) -> None:
    """One step on random images."""
    torch.manual_seed(0)
    set_learning_rates(optimizer, stage, 0, 1)
    size_px = model["backbone"]["tower"].patch_embed.img_size[0]
    features = model["backbone"]["tower"](torch.randn(2, 3, size_px, size_px))
    model["head"](features).square().sum().backward()
    optimizer.step()


def test_a_later_stage_trains_what_an_earlier_froze() -> None:
    model = vit()
    freeze(model, LearningRates(blocks={5: 1e-3}))
    freeze(model, LearningRates(backbone=1e-3, head=1e-3))
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (vit, "lr.blocks: 6: the backbone has 6 blocks, 0 to 5"),
        (
            lambda: Parts({"backbone": timm.create_model("test_resnet", num_classes=0)}),
            "lr.blocks: 0: the backbone has no blocks",
        ),
    ],
    ids=["too high", "without blocks"],
)
def test_an_unknown_block_is_refused(model: Callable[[], nn.Module], said: str) -> None:
    model = model()
    lr = LearningRates(blocks={0: 0.0, 6: 1e-3, 9: 1e-3})
    with pytest.raises(UserError, match=f"^{said}$"):
        refuse_unknown_blocks(model, lr)


def test_weight_decay_by_part() -> None:
    lr = LearningRates(backbone=1.0, head=1.0, classes=1.0)
    decay = WeightDecays(backbone=1e-3, classes=1e-5)
    model = task()
    optimizer = build_optimizer(model, StageConfig(epochs=1, lr=lr, weight_decay=decay))
    names = {parameter: name for name, parameter in model.named_parameters()}
    decays = {names[p]: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decays == {
        "backbone.weight": 1e-3,
        "backbone.bias": 0.0,
        "head.weight": 0.0,
        "head.bias": 0.0,
        "classes.weight": 1e-5,
    }


def test_vectors_may_be_decayed_too() -> None:
    """As where all parameters go to torch's AdamW: the challenge's 5th place, and others."""
    model, lr = task(), LearningRates(backbone=1.0, head=1.0, classes=1.0)
    stage = StageConfig(epochs=1, lr=lr, weight_decay=0.1, decay_vectors=True)
    optimizer = build_optimizer(model, stage)
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.1}
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))


def one_weight(**settings) -> list[float]:
    """A weight of 1 with gradient 2 and decay .5, after each of two steps at rate .1."""
    model = Parts({"head": nn.Linear(1, 1, bias=False)}).double()
    nn.init.ones_(model["head"].weight)
    rates = LearningRates(head=0.1)
    stage = StageConfig(epochs=1, lr=rates, schedule="constant", weight_decay=0.5, **settings)
    optimizer = build_optimizer(model, stage)
    after = []
    for number in range(2):
        set_learning_rates(optimizer, stage, number, 2)
        model["head"].weight.grad = torch.full((1, 1), 2.0, dtype=torch.float64)
        optimizer.step()
        after.append(model["head"].weight.item())
    return after


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"optimizer": "sgd"}, [1 - 0.1 * 2.5, 0.75 - 0.1 * (2 + 0.375)]),
        (
            {"optimizer": {"name": "sgd", "momentum": 0.9}},
            [0.75, 0.75 - 0.1 * (0.9 * 2.5 + 2 + 0.375)],
        ),
        # Adam's steps have the length of the rate, whatever the decay adds to the gradient
        ({"optimizer": "adam"}, [0.9, 0.8]),
        ({"optimizer": "adamw"}, [0.95 - 0.1, 0.85 * 0.95 - 0.1]),
        ({}, [0.95 - 0.1, 0.85 * 0.95 - 0.1]),
    ],
    ids=["sgd", "momentum", "adam", "adamw", "default"],
)
def test_optimisers_step_as_they_are_defined(settings: dict, expected: list[float]) -> None:
    assert one_weight(**settings) == pytest.approx(expected, rel=1e-3)


def adamw_slowly(value: float, grads: list[float], rates: list[float]) -> float:
    """One AdamW over all steps, without decay, as optax has it; its averages know no stages."""
    mean = square = 0.0
    for step, (grad, rate) in enumerate(zip(grads, rates, strict=True), 1):
        mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad**2
        value -= rate * mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)) ** 0.5 + 1e-8)
    return value


def test_adam_runs_on_over_a_change_of_stage() -> None:
    """UnED's optimizer_utils.py: one optimizer; after the frozen epochs the rates alone change.

    What was frozen starts without averages. At a rate of 1e-30 it stays, and its averages run.
    """
    grads = [3.0, -1.0, 0.5, 2.0, -4.0]
    for frozen in (0.0, 1e-30):
        model = Parts({"head": nn.Linear(1, 1, bias=False), "classes": nn.Linear(1, 1, bias=False)})
        model.double().requires_grad_(True)
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        stages = [
            {"epochs": 3, "lr": {"head": frozen, "classes": 0.1}},
            {"epochs": 2, "lr": {"head": 0.01, "classes": 0.2}},
        ]
        state, done = {}, 0
        for values in stages:
            stage = StageConfig(weight_decay=0.0, schedule="constant", **values)
            freeze(model, stage.lr)
            optimizer = build_optimizer(model, stage)
            continue_optimizer(optimizer, model, state)
            for step in range(int(stage.epochs)):
                set_learning_rates(optimizer, stage, step, int(stage.epochs))
                for parameter in model.parameters():
                    new = torch.full((1, 1), grads[done], dtype=torch.float64)
                    parameter.grad = new if parameter.requires_grad else None
                optimizer.step()
                done += 1
            state = optimizer_state(optimizer, model)
        whole = adamw_slowly(1.0, grads, [0.1] * 3 + [0.2] * 2)
        assert model["classes"].weight.item() == pytest.approx(whole, rel=1e-9)
        late = adamw_slowly(1.0, grads, [0.0] * 3 + [0.01] * 2)
        late = late if frozen else adamw_slowly(1.0, grads[3:], [0.01] * 2)
        assert model["head"].weight.item() == pytest.approx(late, rel=1e-9)


def test_a_stage_that_trains_nothing_is_refused() -> None:
    model = Parts({"backbone": nn.Linear(2, 2)})
    lr = LearningRates(head=1.0)  # of a part that is not there
    freeze(model, lr)
    with pytest.raises(UserError, match="stage idle: nothing to train"):
        build_optimizer(model, StageConfig(name="idle", epochs=1, lr=lr))


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_the_kernel_is_fused_on_cuda_alone_and_stays_on_resume(name: str) -> None:
    config = StageConfig.model_validate(
        {"epochs": 1, "lr": {"head": 0.1}, "optimizer": {"name": name}}
    ).optimizer
    with FakeTensorMode():  # has devices that the machine has not
        there = create_optimizer(config, [{"params": [torch.empty(2, device="cuda")]}])
    here = create_optimizer(config, [{"params": [torch.empty(2)]}])
    assert there.defaults["fused"] and not here.defaults["fused"]
    load_optimizer(here, there.state_dict())
    assert not here.param_groups[0]["fused"]


# Families of timm whose order of layers our names of blocks do not give
REFUSED = (
    "cait coat deepseek_vit densenet dla dpn fastvit hrnet inception_resnet_v2 inception_v3"
    " inception_v4 lowformer mobilenetv5 mobilevit nasnet nest nfnet pit pnasnet rdnet regnet res2net"
    " resnest resnet rexnet selecsls senet sknet tnt tresnet twins vgg visformer"
    " vision_transformer_sam vitamin volo xception xcit"
).split()


@pytest.mark.slow
def test_layer_decay_rises_from_input_to_output_in_every_family_or_is_refused() -> None:
    stage = StageConfig(epochs=1, lr=LearningRates(backbone=1.0), layer_decay=0.5)
    refused = []
    for family in timm.list_modules():
        with torch.device("meta"):
            tower = timm.create_model(timm.list_models(module=family)[0], num_classes=0)
        model = Parts({"backbone": tower})
        try:
            groups = build_optimizer(model, stage).param_groups
        except UserError as error:
            assert str(error).startswith("layer_decay: ")
            refused.append(family)
            continue
        rates = {p: group["peak_lr"] for group in groups for p in group["params"]}
        trained = {name: p for name, p in tower.named_parameters() if p.requires_grad}
        assert sum(len(g["params"]) for g in groups) == len(rates) == len(trained)
        rising = [rates[p] for name, p in trained.items() if "." in name]
        assert rising == sorted(rising) and len(set(rising)) > 3, family
    assert refused == REFUSED


@pytest.mark.parametrize(
    "name",
    ["resnet10t", "densenet121", "regnetx_002", "pit_ti_224"]  # blocks under other names
    + ["xcit_nano_12_p16_224", "cait_xxs24_224"],  # class attention after the last block
)
def test_layer_decay_refuses_a_backbone_whose_order_it_does_not_know(name: str) -> None:
    with torch.device("meta"):
        model = Parts({"backbone": timm.create_model(name, num_classes=0)})
    with pytest.raises(UserError, match="^layer_decay: "):
        build_optimizer(model, StageConfig(epochs=1, lr=LearningRates(backbone=1), layer_decay=0.5))
