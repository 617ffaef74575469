"""Small towers of both libraries, random, and configs of models on them."""

from __future__ import annotations

from typing import Any

from guie.config.model import ModelConfig

TINY_CLIP = {"library": "open_clip", "name": "guie-tiny"}  # 64 px in patches of 8 px
TINY_VIT = {  # 224 px in patches of 16 px
    "library": "timm",
    "name": "vit_tiny_patch16_224",
    "kwargs": {"embed_dim": 48, "depth": 2, "num_heads": 3},
}


def model_config(backbone: dict[str, Any], size_px: int = 32, **more: Any) -> ModelConfig:
    return ModelConfig.model_validate({"backbone": backbone, "image": {"size_px": size_px}, **more})
