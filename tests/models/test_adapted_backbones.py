"""One contract for whatever is added to a backbone, on every family of backbones."""

import copy
from contextlib import nullcontext
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

from exported import check_exported
from guie.base.errors import UserError
from guie.config.model import BackboneConfig, WithAdapters
from guie.models.adapters.attaching import adapt, merge_lora
from guie.models.backbones import build_backbone
from guie.models.embedder import Embedder, build_preprocess
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
def test_a_submission_of_it_runs_in_1_11(
    family: str, added: dict[str, Any], tmp_path: Path
) -> None:
    backbone = stirred(adapted(family, **added)[0]).eval()
    merge_lora(backbone)
    backbone.set_image_size(44, 6)  # overlapping patches
    embedder = Embedder(backbone, None).eval()
    preprocess = build_preprocess(model_config(TINY_VIT), backbone, 44)
    check_exported(embedder, preprocess, tmp_path)


RESNET = {"library": "timm", "name": "resnet10t"}
EVA = {"depth": 1, "embed_dim": 64, "num_heads": 2}
FUSED, SEPARATE = (
    {"library": "timm", "name": f"eva02_{size}_patch14_224", "kwargs": EVA}
    for size in ("tiny", "base")
)
QV = {**LORA, "targets": ["q", "v"]}


@pytest.mark.parametrize(
    ("backbone", "added", "message"),
    [
        (RESNET, {"adapters": STOCHASTIC}, "model.adapters: ResNet is not supported; use a"),
        (RESNET, {"prompts": POOL}, "model.prompts: ResNet is not supported"),
        (TINY_VIT, {"adapters": {**STOCHASTIC, "blocks": [0, 2]}}, "blocks: 2: .* blocks 0 to 1$"),
        (SIGLIP, {"prompts": POOL}, "model.prompts: not supported .* attention pooling"),
        (DINO, {"prompts": POOL}, "model.prompts: Eva has rotary position embeddings in every"),
        (FUSED, {"adapters": QV}, "adapters.0.targets: EvaAttention does not support .* q, v"),
        (FUSED, {"adapters": {**QV, "targets": ["out"]}}, None),
        (SEPARATE, {"adapters": QV}, None),
    ],
)
def test_what_has_no_place_is_refused(backbone: Any, added: Any, message: str | None) -> None:
    one = FAMILIES[backbone]() if isinstance(backbone, str) else None
    one = one or build_backbone(BackboneConfig.model_validate(backbone))
    with pytest.raises(UserError, match=message) if message else nullcontext():
        adapt(one, WithAdapters.model_validate(added))


def test_an_adapter_of_a_module_that_is_never_called_is_refused() -> None:
    backbone = FAMILIES[VIT]()
    backbone.tower.blocks[1].forward = lambda z_BND, *args, **options: z_BND
    with pytest.raises(UserError, match="never calls the module of adaptformer.1_mlp; remove it"):
        adapt(backbone, WithAdapters.model_validate({"adapters": ADAPTFORMER}))
