"""One contract for every kind of backbone that configs/ name, each in small with random weights.

Of another kind, a config fails here until it has a stand-in in tests/torch111/architectures.py.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_models import model_config
from torch import Tensor, nn

from exported import check_exported
from guie.config import RunConfig, load_config
from guie.config.model import BackboneConfig
from guie.models.backbones import Backbone, build_backbone
from guie.models.embedder import Embedder, build_preprocess
from torch111.architectures import CONVOLUTIONS, FAMILIES

CONFIGS = Path(__file__).parents[2] / "configs"
RUNS = [*CONFIGS.glob("*.yaml"), *CONFIGS.glob("demo/*.yaml")]
RUNS = [path for path in RUNS if not path.name.startswith("mix")]
RECIPES = CONFIGS.glob("recipes/*.yaml")

every_family = pytest.mark.parametrize("family", FAMILIES)


def stand_in(family: str) -> Backbone:
    """As if it were pretrained: what is not learns its batch statistics."""
    torch.manual_seed(0)
    backbone = (FAMILIES | CONVOLUTIONS)[family]()
    backbone.new = []
    return backbone


def blocks_of(backbone: Backbone) -> list[nn.Module]:
    """By the library's own attribute, from the first to the last."""
    trunk = backbone.trunk
    return list(trunk.blocks if hasattr(trunk, "blocks") else trunk.transformer.resblocks)


def images_of(size_px: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size_px, size_px, generator=torch.Generator().manual_seed(size_px))


# ---------------------------------------------------------------- the real ones, without memory


def backbones_of_the_configs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Backbone]]:
    """(where it is named, the real backbone without numbers in its weights), each kind of it once."""
    for variable in ("GUIE_REAL", "KAGGLE_INPUT"):
        monkeypatch.setenv(variable, str(CONFIGS))
    monkeypatch.setattr("guie.models.backbones.base._probe_dim", lambda *_: 0)  # most of the time
    seen = []
    for path in sorted([*RUNS, *RECIPES]):
        model = load_config(path, RunConfig).model
        config = model.backbone.model_copy(update=dict.fromkeys(("pretrained", "sha256")))
        if config not in seen:
            seen.append(config)
            yield f"{path.name}: {config.name}", without_memory(config, model.image.size_px)


def without_memory(config: BackboneConfig, size_px: int) -> Backbone:
    if config.library == "open_clip":
        config = config.model_copy(update={"kwargs": {**config.kwargs, "device": "meta"}})
    with torch.device("meta"):
        return build_backbone(config, size_px, weights=False)


def kind_of(backbone: Backbone) -> tuple[frozenset[str], frozenset[str]]:
    """Names of its weights, whatever their block; classes of its layers."""
    names = {re.sub(r"\.\d+\.", ".N.", name) for name, _ in backbone.named_parameters()}
    return frozenset(names), frozenset(type(module).__name__ for module in backbone.modules())


@pytest.mark.slow
def test_each_backbone_of_the_configs_is_of_a_kind_tested_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = FAMILIES | CONVOLUTIONS
    kinds = {kind_of(stand_in(family)): family for family in every}
    found = {
        where: (kinds.get(kind_of(backbone)), backbone)
        for where, backbone in backbones_of_the_configs(monkeypatch)
    }
    assert not [where for where, (family, _) in found.items() if family is None]
    assert {family for family, _ in found.values()} == set(every)  # and none is for nothing
    for where, (family, backbone) in found.items():
        if family in CONVOLUTIONS:
            continue
        numbers = {backbone.block_of(name) for name, _ in backbone.named_parameters()}
        assert numbers == {None, *range(len(blocks_of(backbone)))}, where


# ---------------------------------------------------------------- the contract


@every_family
def test_gradients_reach_every_weight_and_every_pixel(family: str) -> None:
    """With overlapping patches too, whose grid must end at the image's edge."""
    backbone = stand_in(family).train()
    for size_px, stride_px in ((40, None), (44, 6)):
        backbone.set_image_size(size_px, stride_px)
        images = images_of(size_px).requires_grad_()
        feat_BF = backbone(images)
        feat_BF.mul(torch.randn_like(feat_BF)).sum().backward()
        assert images.grad.abs().sum(dim=1).min() > 0
        assert feat_BF.shape == (2, backbone.dim) and torch.pdist(feat_BF).min() > 1e-3
        still = [n for n, p in backbone.named_parameters() if p.grad is None or not p.grad.any()]
        assert not still


@every_family
def test_blocks_are_those_of_the_library_and_the_rest_is_below_or_above(family: str) -> None:
    """What still gets a gradient, where the last block's output is cut off, is above the blocks."""
    backbone = stand_in(family)
    blocks = blocks_of(backbone)
    named = dict(backbone.named_parameters())
    for number, block in enumerate(blocks):
        found = [value for name, value in named.items() if backbone.block_of(name) == number]
        assert {id(p) for p in found} == {id(p) for p in block.parameters()}
    blocks[-1].register_forward_hook(lambda _, given, made: made.detach())
    total = backbone(images_of(40)).sum()
    if total.requires_grad:  # else features are the last block's output
        total.backward()
    above = {name for name, value in named.items() if value.grad is not None}
    assert {name for name in named if backbone.is_top(name)} == above


# Image size, stride, patches in a row; one changes without the other, and both at once.
GRIDS = [(40, 4, 9), (40, None, 5), (48, None, 6), (44, 6, 7), (64, 8, 8), (40, None, 5)]


@every_family
@torch.no_grad()
def test_size_and_stride_change_there_and_back(family: str) -> None:
    backbone = stand_in(family).eval()
    seen = []
    blocks_of(backbone)[0].register_forward_pre_hook(
        lambda _, given: seen.append(given[0].shape[1])
    )
    weights = {name: value.clone() for name, value in backbone.state_dict().items()}
    before = backbone(images_of(40))
    beside = seen[-1] - 5 * 5  # class token, registers
    for size_px, stride_px, side in GRIDS:
        backbone.set_image_size(size_px, stride_px)
        feat_BF = backbone(images_of(size_px))
        assert feat_BF.shape == before.shape and seen[-1] == beside + side * side
        overlap_px = None if stride_px == 8 else stride_px  # beside each other they do not
        assert (backbone.size_px, backbone.stride_px) == (size_px, overlap_px)
        backbone.set_image_size(size_px, stride_px)  # the same once more changes nothing
        assert torch.equal(backbone(images_of(size_px)), feat_BF)
    backbone.load_state_dict(weights)  # learnt positions were interpolated there and back
    assert torch.equal(backbone(images_of(40)), before)
    # What no file holds, as rotary positions, is computed anew to the same numbers
    other = FAMILIES[family]().eval()
    for one in (backbone, other):
        one.set_image_size(44, 6)
    other.load_state_dict(backbone.state_dict())
    assert torch.equal(other(images_of(44)), backbone(images_of(44)))


@every_family
def test_checkpointing_computes_blocks_again_to_the_same_gradients(family: str) -> None:
    def gradients() -> dict[str, Tensor]:
        calls.clear()
        backbone.zero_grad()
        feat_BF = backbone(images_of(40))
        (feat_BF * torch.arange(float(backbone.dim))).mean().backward()
        return {name: parameter.grad.clone() for name, parameter in backbone.named_parameters()}

    backbone, calls = stand_in(family).train(), Counter()
    for block in blocks_of(backbone):
        block.register_forward_pre_hook(lambda module, _: calls.update([module]))
    plain = gradients()
    assert set(calls.values()) == {1}
    backbone.checkpoint_gradients()
    torch.testing.assert_close(gradients(), plain, atol=1e-6, rtol=0)
    assert len(calls) == 2 and set(calls.values()) == {2}


# Those left out differ from another one by what another has too; the heaviest two are slow
EXPORTED = [
    pytest.param(family, marks=pytest.mark.slow if family in ("timm VGG", "timm Inception") else ())
    for family in [*FAMILIES, *CONVOLUTIONS]
    if family not in ("open_clip ViT, pooled", "open_clip ViT, QuickGELU")
]


@pytest.mark.parametrize("family", EXPORTED)
def test_a_submission_of_it_runs_in_1_11_and_answers_the_same(family: str, tmp_path: Path) -> None:
    backbone = stand_in(family)
    size_px = backbone.size_px + 4
    backbone.set_image_size(size_px, 6 if family in FAMILIES else None)
    embedder = Embedder(backbone, None).eval()
    model = model_config({"library": "timm", "name": family})
    preprocess = build_preprocess(model, backbone, size_px)
    check_exported(embedder, preprocess, tmp_path)
