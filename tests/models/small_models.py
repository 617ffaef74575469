"""Small random backbones of both libraries, configs of models on them, and what adapters add to them."""

from typing import Any

import torch
from torch import Tensor

from guie.config.model import ModelConfig, WithAdapters
from guie.models.adapters.attaching import adapt
from guie.models.backbones import Backbone
from torch111.architectures import FAMILIES

PX = 40
TINY_CLIP = {"library": "open_clip", "name": "guie-tiny"}  # 64 px in patches of 8 px
TINY_VIT = {  # 224 px in patches of 16 px
    "library": "timm",
    "name": "vit_tiny_patch16_224",
    "kwargs": {"embed_dim": 48, "depth": 2, "num_heads": 3},
}
STOCHASTIC = {"kind": "stochastic", "dim": 8}
ADAPTFORMER = {"kind": "adaptformer", "dim": 8}
LORA = {"kind": "lora", "rank": 4, "targets": ["q", "k", "v", "out", "mlp"]}
POOL = {"kind": "pool", "size": 6, "length": 3}
SHALLOW, DEEP = ({"kind": kind, "length": 3} for kind in ("shallow", "deep"))
CLIP, VIT, SIGLIP, DINO = "open_clip ViT", "timm ViT", "timm SigLIP", "timm DINOv3"
# One family for each way in which adapters find its blocks
STRUCTURES = [
    *(CLIP, VIT, SIGLIP, DINO),
    *("open_clip PE", "timm TIPSv2", "timm C-RADIOv4", "timm EVA02-CLIP"),
]


def adapted(family: str, **added: Any) -> tuple[Backbone, Backbone]:
    """A backbone with what is added, and the same without."""
    torch.manual_seed(0)
    plain = FAMILIES[family]()
    torch.manual_seed(0)
    return adapt(FAMILIES[family](), WithAdapters.model_validate(added)), plain


def model_config(backbone: dict[str, Any], size_px: int = 32, **more: Any) -> ModelConfig:
    return ModelConfig.model_validate({"backbone": backbone, "image": {"size_px": size_px}, **more})


def stirred(backbone: Backbone) -> Backbone:
    """All that was added at random, as after training."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in added_to(backbone):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return backbone


def added_to(backbone: Backbone) -> list[torch.nn.Parameter]:
    return [p for n, p in backbone.named_parameters() if not n.startswith("tower.")]


def images(count: int = 3, px: int = PX) -> Tensor:
    return torch.randn(count, 3, px, px, generator=torch.Generator().manual_seed(px))
