"""LoRA beside peft's: the same numbers in the same places give the same outputs and gradients."""

import pytest

peft = pytest.importorskip("peft", reason="make judges has it")

import timm  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from guie.config.model import (
    BackboneConfig,  # noqa: E402
    WithAdapters,  # noqa: E402
)
from guie.models.adapters.attaching import adapt, merge_lora  # noqa: E402
from guie.models.backbones import build_backbone  # noqa: E402

SIZES = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 32}
NAME, RANK, ALPHA = "vit_tiny_patch16_224", 4, 12.0
# Ours by place, peft's by module. Its change of a fused q, k and v is one, and ours are three.
PLACES = {"out": "attn.proj", "mlp": "mlp.fc1|mlp.fc2"}


def test_outputs_and_gradients_are_pefts() -> None:
    torch.manual_seed(0)
    ours = build_backbone(BackboneConfig(library="timm", name=NAME, kwargs=SIZES), 32)
    tower = timm.create_model(NAME, num_classes=0, **SIZES)
    tower.load_state_dict(ours.tower.state_dict())
    lora = {"kind": "lora", "rank": RANK, "alpha": ALPHA, "targets": list(PLACES)}
    adapt(ours, WithAdapters.model_validate({"adapters": lora}))
    modules = [name for names in PLACES.values() for name in names.split("|")]
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=modules)
    theirs = peft.get_peft_model(tower, config)
    pairs = paired(ours, theirs)
    assert len(pairs) == 2 * 2 * 3  # blocks, down and up, matrices
    with torch.no_grad():
        for own, other in pairs:
            other.copy_(own.copy_(torch.randn_like(own) * 0.3))

    images = torch.randn(3, 3, 32, 32)
    found, expected = ours(images), theirs(images)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for answer in (found, expected):
        (answer * torch.arange(48.0)).sum().backward()
    for own, other in pairs:
        torch.testing.assert_close(own.grad, other.grad, atol=1e-3, rtol=1e-4)

    merge_lora(ours)
    merged = theirs.merge_and_unload()
    for name, value in merged.state_dict().items():
        torch.testing.assert_close(ours.tower.state_dict()[name], value, atol=1e-6, rtol=1e-5)


def paired(ours: torch.nn.Module, theirs: torch.nn.Module) -> list[tuple[Tensor, Tensor]]:
    """(ours, theirs) of every low-rank matrix."""
    names = {"out": "attn.proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
    known = dict(theirs.named_parameters())
    pairs = []
    for name, own in ours.adapters.lora.named_parameters():
        matrix, _, _, part, _ = name.split(".")
        block, place = matrix.split("_", 1)
        letter = {"down": "A", "up": "B"}[part]
        full = f"base_model.model.blocks.{block}.{names[place]}.lora_{letter}.default.weight"
        pairs.append((own, known[full]))
    return pairs
