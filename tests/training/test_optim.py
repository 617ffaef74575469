"""Optimisers: rates and decay by part, by block, by depth; frozen parameters keep their bits."""

import copy
from typing import Any

import pytest
import timm
import torch
from open_clip import get_model_config
from open_clip.coca_model import CoCa
from open_clip.model import CLIP, CustomTextCLIP
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.conv import _ConvNd

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.model import BackboneConfig
from guie.config.stages import LearningRates, StageConfig, WeightDecays
from guie.data.dataset import Classes
from guie.models.backbones.open_clip import create_clip
from guie.models.backbones.timm import Timm
from guie.training.optim import (
    build_optimizer,
    create_optimizer,
    freeze,
    named_parameters,
    refuse_unknown_blocks,
    set_learning_rates,
)
from guie.training.sharding import continue_optimizer, load_optimizer, optimizer_state
from guie.training.tasks import build_task
from tiny_runs import TINY_CLIP, Parts

ALL = {"backbone": 1e-5, "head": 1e-3, "classes": 1e-2}


def task(**more: nn.Module) -> Parts:
    parts = {"backbone": nn.Linear(3, 4), "head": nn.LayerNorm(4)}
    return Parts({**parts, "classes": nn.Linear(4, 5, bias=False), **more})


def stage_of(**settings: Any) -> StageConfig:
    return StageConfig.model_validate({"epochs": 1, **settings})


def by_name(model: nn.Module, stage: StageConfig, key: str) -> dict[str, float]:
    """A setting of each parameter that is optimised, by the name within its tower."""
    groups = build_optimizer(model, stage).param_groups
    value_of = {p: group[key] for group in groups for p in group["params"]}
    return {
        name.removeprefix("backbone.").removeprefix("tower."): value_of[p]
        for name, p in model.named_parameters()
        if p in value_of
    }


# ---------------------------------------------------------------- parts and blocks


def test_each_part_has_its_rate_and_decay() -> None:
    stage = stage_of(lr=ALL, schedule="constant", weight_decay={"backbone": 1e-3, "classes": 1e-5})
    optimizer = build_optimizer(task(), stage)
    assert set_learning_rates(optimizer, stage, step=0, total_steps=10) == ALL
    assert all(group["lr"] == stage.lr.of(group["part"]) for group in optimizer.param_groups)
    plain = {"weight": 1e-3, "bias": 0.0, "head.weight": 0.0, "head.bias": 0.0}
    assert by_name(task(), stage, "weight_decay") == plain | {"classes.weight": 1e-5}
    every = stage_of(lr=ALL, weight_decay=0.1, decay_vectors=True)  # as the challenge's 5th place
    assert set(by_name(task(), every, "weight_decay").values()) == {0.1}
    model = task(adapters=nn.Linear(4, 2))  # any part that a task declares
    rates = {"adapters": 0.5, "head": 0.1}
    stage = stage_of(lr=rates, weight_decay=WeightDecays(adapters=0.2))
    freeze(model, stage.lr)
    groups = build_optimizer(model, stage).param_groups
    found = {(group["part"], group["peak_lr"], group["weight_decay"]) for group in groups}
    assert found == {("adapters", 0.5, 0.2), ("adapters", 0.5, 0.0), ("head", 0.1, 0.0)}


TASKS = {
    "class weights": {"task": {"loss": {"name": "arcface"}}},
    "pairs": {"task": {"loss": {"name": "supcon"}}},
    "no head": {"model": {"head": None}},
    "contrastive": {"task": {"name": "contrastive"}, "model": {"head": None}},
}


@pytest.mark.parametrize("case", TASKS)
def test_a_tasks_config_knows_its_parts(case: str) -> None:
    """Rates are checked by the config, before any image is read, and used by the task."""
    model = {"backbone": TINY_CLIP, "image": {"size_px": 32}, **TASKS[case].get("model", {})}
    stage = {"epochs": 1, "lr": {"backbone": 1e-4, "head": 0.0, "classes": 0.0}}
    values = {"name": "t", "data": {"manifest": "m.csv"}, "stages": [stage]}
    config = RunConfig.model_validate({**values, **TASKS[case], "model": model})
    made = build_task(config, Classes(["a/0", "a/1", "b/0"], [4, 4, 4], ["a", "a", "b"]))
    assert list(made.parts()) == config.task.parts(config.model)
    named = [id(one.parameter) for one in named_parameters(made)]
    assert len({*named}) == len(named)  # in no two
    assert {*named} == {id(p) for p in made.parameters()}


def test_a_stage_that_trains_nothing_is_refused() -> None:
    model = Parts({"backbone": nn.Linear(2, 2)})
    freeze(model, LearningRates(head=1.0))  # a part that does not exist
    with pytest.raises(UserError, match="stage idle: nothing to train"):
        build_optimizer(model, stage_of(name="idle", lr={"head": 1.0}))


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
    stage = stage_of(lr={"backbone": 1.0, "head": 3.0, "blocks": blocks})
    rates = by_name(model(), stage, "peak_lr")
    assert {name: rates[name] for name in expected} == expected


def test_frozen_blocks_keep_their_bits_and_the_rest_moves() -> None:
    model = vit()
    stage = stage_of(lr={"head": 1e-2, "blocks": {0: 0.0, 4: 1e-2}}, optimizer="sgd")
    freeze(model, stage.lr)
    before = copy.deepcopy(model.state_dict())
    optimizer = build_optimizer(model, stage)
    set_learning_rates(optimizer, stage, 0, 1)
    size_px = model["backbone"]["tower"].patch_embed.img_size[0]
    images = torch.randn(2, 3, size_px, size_px, generator=torch.Generator().manual_seed(0))
    model["head"](model["backbone"]["tower"](images)).square().sum().backward()
    optimizer.step()
    moved = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert {Timm.block_of(name) for name in moved if "blocks" in name} == {4, 5}
    assert {name for name in moved if "blocks" not in name} == {"head.weight", "head.bias"}
    assert {name for name, p in model.named_parameters() if p.grad is not None} == moved
    freeze(model, LearningRates(backbone=1e-3, head=1e-3))  # a later stage trains all of it
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_vit", "lr.blocks: 6: the backbone has 6 blocks, 0 to 5"),
        ("test_resnet", "lr.blocks: 0: the backbone has no blocks"),
    ],
)
def test_an_unknown_block_is_refused(name: str, message: str) -> None:
    model = Parts({"backbone": timm.create_model(name, num_classes=0)})
    with pytest.raises(UserError, match=f"^{message}$"):
        refuse_unknown_blocks(model, LearningRates(blocks={0: 0.0, 6: 1e-3, 9: 1e-3}))


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("sgd", [1 - 0.1 * 2.5, 0.75 - 0.1 * (2 + 0.375)]),
        ({"name": "sgd", "momentum": 0.9}, [0.75, 0.75 - 0.1 * (0.9 * 2.5 + 2 + 0.375)]),
        # Adam's steps have the length of the rate, whatever the decay adds to the gradient
        ("adam", [0.9, 0.8]),
        ("adamw", [0.95 - 0.1, 0.85 * 0.95 - 0.1]),
        (None, [0.95 - 0.1, 0.85 * 0.95 - 0.1]),
    ],
)
def test_optimisers_step_as_they_are_defined(optimizer: Any, expected: list[float]) -> None:
    """A weight of 1 with gradient 2 and decay .5, after each of two steps at rate .1."""
    model = Parts({"head": nn.Linear(1, 1, bias=False)}).double()
    nn.init.ones_(model["head"].weight)
    more = {"optimizer": optimizer} if optimizer else {}
    stage = stage_of(lr={"head": 0.1}, schedule="constant", weight_decay=0.5, **more)
    built, after = build_optimizer(model, stage), []
    for number in range(2):
        set_learning_rates(built, stage, number, 2)
        model["head"].weight.grad = torch.full((1, 1), 2.0, dtype=torch.float64)
        built.step()
        after.append(model["head"].weight.item())
    assert after == pytest.approx(expected, rel=1e-3)


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


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_the_kernel_is_fused_on_cuda_alone_and_stays_on_resume(name: str) -> None:
    config = stage_of(lr={"head": 0.1}, optimizer=name).optimizer
    with FakeTensorMode():  # has devices that the machine has not
        there = create_optimizer(config, [{"params": [torch.empty(2, device="cuda")]}])
    here = create_optimizer(config, [{"params": [torch.empty(2)]}])
    assert there.defaults["fused"] and not here.defaults["fused"]
    load_optimizer(here, there.state_dict())
    assert not here.param_groups[0]["fused"]


# ---------------------------------------------------------------- every kind of backbone

# Embedding: of words, which open_clip's own training decays too
MULTIPLY = (nn.Linear, _ConvNd, nn.MultiheadAttention, nn.LSTM, nn.Embedding)
LAYER_DECAY = stage_of(lr={"backbone": 1.0}, layer_decay=0.5)
# Families of timm whose order of layers our names of blocks do not give
UNKNOWN_ORDER = (
    "cait coat deepseek_vit densenet dla dpn fastvit hrnet inception_resnet_v2 inception_v3"
    " inception_v4 lowformer mobilenetv5 mobilevit nasnet nest nfnet pit pnasnet rdnet regnet res2net"
    " resnest resnet rexnet selecsls senet sknet tnt tresnet twins vgg visformer"
    " vision_transformer_sam vitamin volo xception xcit"
).split()


def decayed(tower: nn.Module, **keys: bool) -> set[str]:
    """The names of a backbone's parameters that have weight decay."""
    stage = stage_of(lr={"backbone": 1.0}, weight_decay=0.1, **keys)
    model = Parts({"backbone": tower})
    return {name for name, decay in by_name(model, stage, "weight_decay").items() if decay}


def matrices(tower: nn.Module) -> set[str]:
    """The matrices, by the kind of module that they are in, but those that the library spares."""
    found = {
        f"{place}.{name}".lstrip(".")
        for place, module in tower.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim > 1
        and isinstance(module, MULTIPLY)
        and name != "gain"  # NFNet's, of shape (C, 1, 1, 1)
    }
    for place, module in tower.named_modules():
        spared = getattr(module, "no_weight_decay", set)()
        found -= {f"{place}.{name}".lstrip(".") for name in spared}
    return found


def assert_rates_rise(tower: nn.Module, encoder: nn.Module) -> None:
    """Layer decay: from input to output of an image encoder."""
    groups = build_optimizer(Parts({"backbone": tower}), LAYER_DECAY).param_groups
    rates = {p: group["peak_lr"] for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(rates)
    named = [(name, p) for name, p in encoder.named_parameters() if p.requires_grad]
    rising = [rates[p] for name, p in named if "." in name]
    assert rising == sorted(rising) and len(set(rising)) > 3


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, num_classes=0)


def clip_of_kind(name: str) -> nn.Module:
    """A whole CLIP, with the class that open_clip takes for it."""
    config = get_model_config(name)
    kind = CustomTextCLIP if config.pop("custom_text", False) else CLIP
    kind = CoCa if "multimodal_cfg" in config else kind
    with torch.device("meta"):
        return kind(**config)


@pytest.mark.slow
@pytest.mark.parametrize("family", timm.list_modules())
def test_matrices_decay_and_layer_decay_rises_in_a_timm_family(family: str) -> None:
    tower = on_meta(timm.list_models(module=family)[0])
    assert decayed(tower) == matrices(tower)
    if family not in UNKNOWN_ORDER:
        assert_rates_rise(tower, tower)
        return
    with pytest.raises(UserError, match="^layer_decay: "):
        assert_rates_rise(tower, tower)


COCA = ("text.text_projection", "text_decoder.text_projection")


@pytest.mark.parametrize(
    ("name", "free", "order_is_known"),
    [
        ("RN50", {"text_projection"}, False),
        ("ViT-B-32", {"visual.proj", "text_projection"}, True),
        ("coca_ViT-B-32", {"visual.proj", *COCA}, False),
        ("convnext_base", {"text_projection"}, True),
        ("EVA02-B-16", {"text.text_projection"}, True),
        ("ViT-B-16-SigLIP2", set(), True),
    ],
)
def test_matrices_decay_and_layer_decay_rises_in_an_open_clip_kind(
    name: str, free: set[str], order_is_known: bool
) -> None:
    clip = clip_of_kind(name)
    assert decayed(clip) == matrices(clip) | free
    if order_is_known:
        for tower in (clip, clip.visual):
            assert_rates_rise(tower, clip.visual)
        return
    with pytest.raises(UserError, match="^layer_decay: "):
        assert_rates_rise(clip, clip.visual)


def test_tokens_and_positions_decay_if_the_config_says_so() -> None:
    """By default a step without gradient shrinks matrices alone, by 1 - rate x decay."""
    tower = timm.create_model("test_vit", num_classes=0)
    assert decayed(tower, decay_embeddings=True) == decayed(tower) | {"cls_token", "pos_embed"}
    assert decayed(tower, decay_vectors=True) == {name for name, _ in tower.named_parameters()}
    before = {name: value.detach().clone() for name, value in tower.named_parameters()}
    stage = stage_of(lr={"backbone": 0.5}, optimizer="sgd", weight_decay=0.2)
    optimizer = build_optimizer(Parts({"backbone": tower}), stage)
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"]
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, value in tower.named_parameters():
        factor = 0.9 if name in matrices(tower) else 1.0
        torch.testing.assert_close(value.detach(), before[name] * factor)
