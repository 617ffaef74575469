"""One contract for whatever is added to a backbone, on every family of backbones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import (
    ADAPTFORMER,
    CLIP,
    DEEP,
    DINO,
    LORA,
    POOL,
    PX,
    SHALLOW,
    SIGLIP,
    STOCHASTIC,
    STRUCTURES,
    TINY_VIT,
    VIT,
    adapted,
    added_to,
    images,
    model_config,
    stirred,
)
from torch import Tensor

from exported import check_exported
from guie.base.errors import UserError
from guie.config.model import WithAdapters
from guie.models.adapters.attaching import adapt, merge_lora
from guie.models.backbones import build_backbone
from guie.models.embedder import Embedder, build_embedder, build_preprocess
from torch111.architectures import FAMILIES

ALL = {"adapters": [STOCHASTIC, ADAPTFORMER, LORA]}
POOLED = {"adapters": [STOCHASTIC, LORA], "prompts": POOL}
DEEPER = {"adapters": ADAPTFORMER, "prompts": DEEP}
CASES = [
    *(pytest.param(family, ALL, id=family) for family in STRUCTURES),
    *(
        pytest.param(family, added, id=f"{family}, {name}")
        for family in (CLIP, VIT)
        for name, added in {"pool": POOLED, "shallow": {"prompts": SHALLOW}, "deep": DEEPER}.items()
    ),
]
with_prompts = [case for case in CASES[-6:] if "shallow" not in str(case.id)]


@pytest.mark.parametrize("family", [*STRUCTURES, "open_clip ViT without LoRA"])
def test_adapters_begin_as_nothing(family: str) -> None:
    """To the bit; but LoRA takes torch's attention apart, and its sums come in another order."""
    apart, lora = family == CLIP, [LORA] if family in STRUCTURES else []
    backbone, plain = adapted(family if lora else CLIP, adapters=[STOCHASTIC, ADAPTFORMER, *lora])
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if apart else {"atol": 0, "rtol": 0}
    for mode in (True, False):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                expected, found = plain.train(mode)(images()), backbone.train(mode)(images())
            torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize(("family", "added"), CASES)
def test_what_is_added_learns_is_saved_and_is_the_models_own(
    family: str, added: dict[str, Any]
) -> None:
    """The tower stays and keeps its names; a copy, as the running average is, holds on to its own."""
    backbone, plain = adapted(family, **added)
    assert set(backbone.tower.state_dict()) == set(plain.tower.state_dict())
    backbone.tower.requires_grad_(False)
    other = copy.deepcopy(backbone).eval()
    stirred(backbone).train()
    feat_BF = backbone(images())
    (feat_BF * torch.randn_like(feat_BF)).sum().backward()
    reached = [p for p in added_to(backbone) if p.grad is not None]
    assert len(reached) == len(added_to(backbone)) > 0
    always = [p for n, p in backbone.named_parameters() if p.requires_grad and "stoch" not in n]
    assert all(p.grad.any() for p in always)
    assert not [p for p in backbone.tower.parameters() if p.grad is not None]

    with torch.no_grad():
        trained = backbone.eval()(images())
        assert not torch.equal(other(images()), trained)
        other.load_state_dict(backbone.state_dict())
        assert torch.equal(other(images()), trained)
        for parameter in added_to(other):
            parameter.mul_(3)
        assert torch.equal(backbone(images()), trained)
        changed = other(images())
        assert not torch.equal(changed, trained)
        for parameter in added_to(backbone):
            parameter.zero_()
        assert torch.equal(other(images()), changed)


@pytest.mark.parametrize(("family", "added"), with_prompts)
def test_images_of_another_size_and_overlapping_patches(family: str, added: dict[str, Any]) -> None:
    backbone = stirred(adapted(family, **added)[0]).eval()
    backbone.set_image_size(44, 6)
    assert backbone(images(px=44)).isfinite().all()


@pytest.mark.parametrize(("family", "added"), with_prompts)
def test_checkpointing_draws_and_computes_the_same(family: str, added: dict[str, Any]) -> None:
    backbone = stirred(adapted(family, **added)[0]).train()

    def gradients() -> list[Tensor]:
        backbone.zero_grad()
        torch.manual_seed(3)
        backbone(images()).square().sum().backward()
        return [p.grad.clone() for p in added_to(backbone)]

    plain = gradients()
    backbone.checkpoint_gradients()
    torch.testing.assert_close(gradients(), plain, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("family", "added"), with_prompts)
def test_a_submission_of_it_runs_in_1_11(
    family: str, added: dict[str, Any], tmp_path: Path
) -> None:
    backbone = stirred(adapted(family, **added)[0]).eval()
    merge_lora(backbone)
    embedder = Embedder(backbone, None).eval()
    preprocess = build_preprocess(model_config(TINY_VIT), backbone, PX)
    check_exported(embedder, preprocess, tmp_path)


# ---------------------------------------------------------------- what has no place for it


def refused(backbone: dict[str, Any], **added: Any) -> str:
    config = model_config(backbone, 64, head=None, **added)
    with pytest.raises(UserError) as raised:
        build_embedder(config)
    return str(raised.value)


def test_a_backbone_without_blocks_is_refused() -> None:
    small = {"layers": [1] * 4, "channels": [8] * 4}
    resnet = {"library": "timm", "name": "resnet50", "kwargs": small}
    for added in ({"adapters": STOCHASTIC}, {"prompts": POOL}):
        assert "ResNet is not supported" in refused(resnet, **added)


def test_a_block_that_is_not_there_is_named() -> None:
    message = refused(TINY_VIT, adapters={**STOCHASTIC, "blocks": [0, 2]})
    assert message == "model.adapters.0.blocks: 2: the backbone has blocks 0 to 1"


@pytest.mark.parametrize(
    ("family", "why"), [(SIGLIP, "attention pooling"), (DINO, "in every block")]
)
def test_prompts_join_no_sequence_without_a_place(family: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        adapt(FAMILIES[family](), WithAdapters.model_validate({"prompts": POOL}))


def test_an_adapter_of_a_module_that_is_never_called_is_refused() -> None:
    backbone = FAMILIES[VIT]()
    backbone.tower.blocks[1].forward = lambda z_BND, *args, **options: z_BND
    with pytest.raises(UserError, match="never calls the module of adaptformer.1_mlp; remove it"):
        adapt(backbone, WithAdapters.model_validate({"adapters": ADAPTFORMER}))


def test_lora_on_weights_that_no_module_uses_is_refused() -> None:
    sizes = {"depth": 1, "embed_dim": 64, "num_heads": 2}
    separate = {"library": "timm", "name": "eva02_base_patch14_224", "kwargs": sizes}
    fused = {"library": "timm", "name": "eva02_tiny_patch14_224", "kwargs": sizes}
    adapt(build_backbone(model_config(separate).backbone), WithAdapters(adapters=[_lora("q", "v")]))
    adapt(build_backbone(model_config(fused).backbone), WithAdapters(adapters=[_lora("out")]))
    with pytest.raises(
        UserError, match=r"adapters\.0\.targets: EvaAttention does not support LoRA on q, v"
    ):
        adapt(
            build_backbone(model_config(fused).backbone), WithAdapters(adapters=[_lora("q", "v")])
        )


def _lora(*places: str) -> Any:
    return WithAdapters.model_validate({"adapters": {**LORA, "targets": list(places)}}).adapters[0]


@pytest.mark.parametrize(
    ("added", "key"),
    [
        ({"adapters": {**STOCHASTIC, "dim": 0}}, "dim"),
        ({"adapters": {**STOCHASTIC, "keep": 0.0}}, "keep"),
        ({"adapters": {**STOCHASTIC, "keep": 1.5}}, "keep"),
        ({"adapters": {**LORA, "rank": 0}}, "rank"),
        ({"adapters": {**LORA, "targets": []}}, "targets"),
        ({"adapters": {**LORA, "targets": ["w"]}}, "targets"),
        ({"adapters": [STOCHASTIC, STOCHASTIC]}, "each kind once"),
        ({"prompts": {**POOL, "length": 0}}, "length"),
    ],
)
def test_a_bad_key_is_named(added: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        WithAdapters.model_validate(added)
