"""Each kind by itself, against its formula written out."""

from typing import Any

import pytest
import torch
from small_models import (
    ADAPTFORMER,
    CLIP,
    DEEP,
    LORA,
    POOL,
    SHALLOW,
    STOCHASTIC,
    STRUCTURES,
    VIT,
    adapted,
    images,
    stirred,
)
from torch import Tensor, nn
from torch.nn import functional

from guie.config.model import BackboneConfig, GateConfig, WithAdapters
from guie.models.adapters.attaching import adapt, merge_lora, tuned_names
from guie.models.adapters.bottleneck import Gate
from guie.models.adapters.prompts import Pool
from guie.models.backbones import build_backbone
from torch111.architectures import FAMILIES

# ---------------------------------------------------------------- gates


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("draw", ["batch", "image"])
def test_a_gate_scores_what_training_has_on_average(draw: str, rescale: bool) -> None:
    gate = Gate(GateConfig(keep=0.3, draw=draw, rescale=rescale))
    torch.manual_seed(0)
    branch_BND = torch.ones(2, 1, 1)
    drawn_SB = torch.stack([gate(branch_BND)[:, 0, 0] for _ in range(4000)])
    on = 1 / 0.3 if rescale else 1.0
    assert drawn_SB.unique().tolist() == [0.0, pytest.approx(on)]
    together = (drawn_SB[:, 0] == drawn_SB[:, 1]).float().mean()
    assert together == (1 if draw == "batch" else pytest.approx(0.3**2 + 0.7**2, abs=0.03))
    scored = gate.eval()(branch_BND)
    assert scored.unique().tolist() == [pytest.approx(1.0 if rescale else 0.3)]
    assert drawn_SB.mean() == pytest.approx(float(scored[0]), rel=0.1)


# ---------------------------------------------------------------- bottlenecks


def vit_s(**added: Any) -> Any:
    """The first block of a random ViT-S/16 with what is added."""
    torch.manual_seed(0)
    small = BackboneConfig(library="timm", name="vit_small_patch16_224", kwargs={"depth": 1})
    return adapt(build_backbone(small, 224), WithAdapters.model_validate(added))


def test_adapters_start_as_in_pumas_code() -> None:
    """Its he_uniform on a (D, r) tensor: deviation 1 / sqrt(r), and the same in both branches."""
    added = {"kind": "stochastic", "dim": 128, "init": "fan_out"}
    attention, mlp = vit_s(adapters=added).adapters.stochastic.values()
    weight_rD = attention.down.weight
    theirs_Dr = nn.init.kaiming_uniform_(torch.empty(384, 128), a=1)
    assert weight_rD.std().item() == pytest.approx(0.0884, abs=5e-4)
    assert weight_rD.std().item() == pytest.approx(theirs_Dr.std().item(), rel=0.01)
    assert weight_rD.abs().max() <= (3 / 128) ** 0.5
    assert torch.equal(weight_rD, mlp.down.weight) and weight_rD is not mlp.down.weight
    usual, other = vit_s(adapters={**added, "init": "fan_in"}).adapters.stochastic.values()
    assert usual.down.weight.std().item() == pytest.approx((3 * 384) ** -0.5, rel=0.01)  # torch's
    assert not torch.equal(usual.down.weight, other.down.weight)
    assert not attention.up.weight.any() and not mlp.up.weight.any()


def bottleneck(adapter: Any, normed: Tensor) -> Tensor:
    hidden = (
        normed @ adapter.down.weight.T + (0 if adapter.down.bias is None else adapter.down.bias)
    ).relu()
    return hidden @ adapter.up.weight.T + (0 if adapter.up.bias is None else adapter.up.bias)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["stochastic", "adaptformer"])
def test_a_block_equals_its_equation(kind: str) -> None:
    added = {**STOCHASTIC, "scale": 2.0} if kind == "stochastic" else ADAPTFORMER
    backbone, plain = adapted(VIT, adapters=added)
    stirred(backbone).eval()
    first: dict[str, Any] = dict(backbone.adapters.get_submodule(kind).named_children())
    block = plain.eval().tower.blocks[0]
    z = torch.randn(2, 7, 48, generator=torch.Generator().manual_seed(0))
    if kind == "stochastic":
        attended = z + block.attn(block.norm1(z))
        attended += 0.5 * 2.0 * bottleneck(first["0_attention"], block.norm1(z))
        expected = attended + block.mlp(block.norm2(attended))
        expected += 0.5 * 2.0 * bottleneck(first["0_mlp"], block.norm2(attended))
    else:
        attended = z + block.attn(block.norm1(z))
        expected = attended + block.mlp(block.norm2(attended))
        expected += 0.1 * bottleneck(first["0_mlp"], block.norm2(attended))
    torch.testing.assert_close(backbone.tower.blocks[0](z), expected, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------- LoRA


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "keep"), [*((family, 0.5) for family in STRUCTURES), (VIT, 1.0)]
)
def test_merged_it_answers_the_same(family: str, keep: float) -> None:
    added = {**LORA, "keep": keep, "alpha": 8.0}
    backbone = stirred(adapted(family, adapters=added)[0]).eval()
    before = backbone(images())
    plain = FAMILIES[family]()
    merge_lora(backbone)
    assert backbone.adapters is None
    assert set(backbone.state_dict()) == set(plain.state_dict())
    assert [type(m) for m in backbone.modules()] == [type(m) for m in plain.modules()]
    difference = (functional.normalize(backbone(images())) - functional.normalize(before)).abs()
    assert difference.max() < 1e-5


@pytest.mark.parametrize("family", [CLIP, VIT])
@pytest.mark.parametrize("place", ["q", "k", "v", "out", "mlp"])
def test_the_mask_says_which_weights_change(family: str, place: str) -> None:
    backbone, plain = adapted(family, adapters={**LORA, "targets": [place]})
    stirred(backbone)
    merge_lora(backbone)
    before, after = plain.state_dict(), backbone.state_dict()
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    if place == "v":  # of one block of two
        added = {**LORA, "targets": ["v"], "blocks": [1], "alpha": 8.0}
        (change,) = adapted(family, adapters=added)[0].adapters.lora.values()
        assert change.thirds["v"].scale == 8.0 / 4
    if place in ("q", "k", "v"):
        names = {n for n in before if "in_proj_weight" in n or "qkv.weight" in n}
        for name in names:
            thirds = zip(before[name].chunk(3), after[name].chunk(3), strict=True)
            moved = [not torch.equal(a, b) for a, b in thirds]
            assert moved == [place == "q", place == "k", place == "v"]
    elif place == "out":
        names = {n for n in before if "out_proj.weight" in n or "attn.proj.weight" in n}
    else:
        names = {n for n in before if "mlp" in n and n.endswith("weight")}
    assert changed == names and names


# ---------------------------------------------------------------- prompts


def tokens_before(backbone: Any, first: nn.Module) -> Tensor:
    seen: list[Tensor] = []
    hold = first.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    backbone(images())
    hold.remove()
    return seen[0]


@torch.no_grad()
@pytest.mark.parametrize("variant", ["paper", "code"])
@pytest.mark.parametrize("family", [CLIP, VIT])
def test_a_pools_prompt_equals_its_equations(family: str, variant: str) -> None:
    code = {"query": "mean", "attention": "softmax"} if variant == "code" else {}
    backbone, plain = adapted(family, prompts={**POOL, **code})
    stirred(backbone).eval()
    tower, pool = plain.eval().tower, backbone.prompts
    is_clip = family == CLIP
    blocks = backbone.tower.transformer.resblocks if is_clip else backbone.tower.blocks
    own = tower.transformer.resblocks if is_clip else tower.blocks
    found, without = tokens_before(backbone, blocks[0]), tokens_before(plain, own[0])
    patches = tower.conv1(images()).flatten(2).mT if is_clip else tower.patch_embed(images())
    position = tower.positional_embedding[0] if is_clip else tower.pos_embed[0, 0]
    attention = pool.weighing.attention_MD
    for image in range(3):
        query = patches[image].mean(0) + patches[image].amax(0)
        query, a = (query / 2, attention.softmax(1)) if code else (query, attention)
        weights = [
            functional.cosine_similarity(query * a[m], pool.weighing.key_MD[m], dim=0)
            for m in range(6)
        ]
        prompt = sum(w * pool.prompt_MLD[m] for m, w in enumerate(weights)) + position
        torch.testing.assert_close(found[image, 1:4], prompt, atol=1e-5, rtol=1e-4)
    seen: list[Tensor] = []
    pool.weighing.register_forward_hook(lambda _, given, made: seen.append(given[0]))
    with torch.enable_grad():
        backbone(images())
    assert seen[0].requires_grad == (not code)
    rest = [token for token in range(found.shape[1]) if token not in (1, 2, 3)]
    assert torch.equal(found[:, rest], without)  # class token, prompt, patches


@torch.no_grad()
def test_the_penalty_is_zero_where_all_is_orthogonal() -> None:
    first_LD, *others = vit_s(prompts={"kind": "pool", "init": "equal"}).prompts.prompt_MLD
    assert all(torch.equal(other_LD, first_LD) for other_LD in others)  # as in PUMA's code
    torch.testing.assert_close(first_LD @ first_LD.T, torch.eye(8), atol=1e-5, rtol=0)
    pool = adapted(VIT, prompts={**POOL, "orthogonality": 1e-6})[0].prompts
    assert isinstance(pool, Pool) and pool.orthogonality == 1e-6
    assert float(pool.penalty()) == pytest.approx(0, abs=1e-10)  # as they begin
    pool.weighing.key_MD[1] = pool.weighing.key_MD[0]
    assert float(pool.penalty()) == pytest.approx(2 / 6**2)


def test_shallow_prompts_start_within_jias_bound() -> None:
    """Of ViT-S/16: sqrt(6 / (3 x 16 x 16 + 384)), .072 (Jia et al., ECCV 2022)."""
    prompt_GLD = vit_s(prompts={"kind": "shallow"}).prompts.prompt_GLD
    assert 0.070 < prompt_GLD.abs().max().item() <= 0.0722


@torch.no_grad()
@pytest.mark.parametrize("family", [CLIP, VIT])
def test_shallow_prompts_may_have_the_class_tokens_position(family: str) -> None:
    """PUMA's models/vision_transformer.py:645-647, 845: positions are added behind the prompts."""
    for position in ("none", "class"):
        backbone, plain = adapted(family, prompts={**SHALLOW, "position": position})
        stirred(backbone).eval()
        tower, is_clip = plain.eval().tower, family == CLIP
        first = (backbone.tower.transformer.resblocks if is_clip else backbone.tower.blocks)[0]
        added = tower.positional_embedding[0] if is_clip else tower.pos_embed[0, 0]
        wanted = backbone.prompts.prompt_GLD[0] + (added if position == "class" else 0)
        assert added.any()
        torch.testing.assert_close(
            tokens_before(backbone, first)[:, 1:4], wanted.expand(3, -1, -1), atol=1e-6, rtol=0
        )


@torch.no_grad()
def test_deep_prompts_take_the_place_of_the_block_befores() -> None:
    backbone = stirred(adapted(VIT, prompts=DEEP)[0]).eval()
    prompt_GLD = backbone.prompts.prompt_GLD
    assert prompt_GLD.shape == (2, 3, 48)
    for number, block in enumerate(backbone.tower.blocks):
        found = tokens_before(backbone, block)
        assert torch.equal(found[:, 1:4], prompt_GLD[number].expand(3, -1, -1))
        assert found.shape[1] == 1 + 3 + 25  # no patch is lost
    assert tokens_before(backbone, backbone.tower.norm).shape[1] == 1 + 25  # no pooling sees them


# ---------------------------------------------------------------- the backbone's own vectors


def test_tuned_vectors_are_named() -> None:
    for family, backbone in ((CLIP, FAMILIES[CLIP]()), (VIT, FAMILIES[VIT]())):
        tower = backbone.tower
        biases, norms = tuned_names(tower, "biases"), tuned_names(tower, "norms")
        named = dict(tower.named_parameters())
        assert set(biases) == {n for n in named if n.endswith("bias")}
        in_norms = ("norm", "ln_")
        assert set(norms) == {n for n in named if any(word in n for word in in_norms)}, family
        assert set(tuned_names(tower, "both")) == {*biases, *norms}
