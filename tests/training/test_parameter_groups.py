"""Parameter groups of every kind of backbone: matrices alone decay, and rates rise from input to output."""

from __future__ import annotations

import pytest
import timm
import torch
from open_clip import get_model_config
from open_clip.coca_model import CoCa
from open_clip.model import CLIP, CustomTextCLIP
from torch import nn
from torch.nn.modules.conv import _ConvNd

from guie.base.errors import UserError
from guie.config.stages import LearningRates, StageConfig
from guie.training.optim import build_optimizer
from tiny_runs import Parts

# Embedding: of words, which open_clip's own training decays too
MULTIPLY = (nn.Linear, _ConvNd, nn.MultiheadAttention, nn.LSTM, nn.Embedding)


def decayed(tower: nn.Module, **keys: bool) -> set[str]:
    """The names of a backbone's parameters that have weight decay; prints its groups."""
    rates = LearningRates(backbone=1.0)
    stage = StageConfig(epochs=1, lr=rates, weight_decay=0.1, **keys)
    groups = build_optimizer(Parts({"backbone": tower}), stage).param_groups
    names = {parameter: name for name, parameter in tower.named_parameters()}
    for group in groups:
        print(f"  decay {group['weight_decay']}: {[names[p] for p in group['params']]}")
    return {names[p] for g in groups for p in g["params"] if g["weight_decay"]}


def expected(tower: nn.Module) -> set[str]:
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


def of_kind(name: str) -> nn.Module:
    """A whole CLIP, with the class that open_clip takes for it."""
    config = get_model_config(name)
    kind = CustomTextCLIP if config.pop("custom_text", False) else CLIP
    kind = CoCa if "multimodal_cfg" in config else kind
    with torch.device("meta"):
        return kind(**config)


@pytest.mark.slow
@pytest.mark.parametrize("family", timm.list_modules())
def test_only_the_matrices_of_a_timm_family_are_decayed(family: str) -> None:
    with torch.device("meta"):
        tower = timm.create_model(timm.list_models(module=family)[0], num_classes=0)
    assert decayed(tower) == expected(tower)


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("RN50", {"text_projection"}),
        ("ViT-B-32", {"visual.proj", "text_projection"}),
        ("coca_ViT-B-32", {"visual.proj", "text.text_projection", "text_decoder.text_projection"}),
        ("convnext_base", {"text_projection"}),
        ("EVA02-B-16", {"text.text_projection"}),
        ("ViT-B-16-SigLIP2", set()),
    ],
)
def test_only_the_matrices_of_an_open_clip_kind_are_decayed(name: str, free: set[str]) -> None:
    clip = of_kind(name)
    assert decayed(clip) == expected(clip) | free


@pytest.mark.parametrize("name", ["ViT-B-32", "convnext_base", "EVA02-B-16", "ViT-B-16-SigLIP2"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "image encoder"])
def test_layer_decay_rises_in_an_open_clip_kind(name: str, whole: bool) -> None:
    clip = of_kind(name)
    stage = StageConfig(epochs=1, lr=LearningRates(backbone=1.0), layer_decay=0.5)
    tower = clip if whole else clip.visual
    groups = build_optimizer(Parts({"backbone": tower}), stage).param_groups
    rates = {p: group["peak_lr"] for group in groups for p in group["params"]}
    rising = [rates[p] for n, p in clip.visual.named_parameters() if "." in n]
    assert rising == sorted(rising) and len(set(rising)) > 3


@pytest.mark.parametrize(
    ("name", "whole"), [("RN50", True), ("RN50", False), ("coca_ViT-B-32", True)]
)
def test_layer_decay_is_refused_in_an_open_clip_kind_of_unknown_order(
    name: str, whole: bool
) -> None:
    clip = of_kind(name)
    stage = StageConfig(epochs=1, lr=LearningRates(backbone=1.0), layer_decay=0.5)
    with pytest.raises(UserError, match="^layer_decay: "):
        build_optimizer(Parts({"backbone": clip if whole else clip.visual}), stage)


def test_tokens_and_positions_are_decayed_where_the_config_says_so() -> None:
    tower = timm.create_model("test_vit", num_classes=0)
    embeddings = {"cls_token", "pos_embed"}
    assert decayed(tower, decay_embeddings=True) == decayed(tower) | embeddings
    assert decayed(tower, decay_vectors=True) == {name for name, _ in tower.named_parameters()}


def test_a_step_without_gradient_shrinks_matrices_alone() -> None:
    """The bits of tokens, positions, biases and norms stay; matrices are multiplied by 1 - rate x decay."""
    tower = timm.create_model("test_vit", num_classes=0)
    before = {name: value.detach().clone() for name, value in tower.named_parameters()}
    rates = LearningRates(backbone=0.5)
    stage = StageConfig(epochs=1, lr=rates, optimizer="sgd", weight_decay=0.2)
    optimizer = build_optimizer(Parts({"backbone": tower}), stage)
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"]
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, value in tower.named_parameters():
        factor = 0.9 if name in expected(tower) else 1.0
        torch.testing.assert_close(value.detach(), before[name] * factor)
