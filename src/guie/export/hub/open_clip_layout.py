"""Write a backbone in open_clip's layout: open_clip_config.json and open_clip_model.safetensors.

open_clip loads only complete models, so an untrained text encoder of one word and one layer is added as a
placeholder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import Tensor

from guie.base.files import write_json
from guie.config.model import BackboneConfig
from guie.models.backbones import Backbone
from guie.models.weights import save_weights

FILES = ("open_clip_config.json", "open_clip_model.safetensors")
IMPORT = "open_clip"
LOAD = """\
backbone, transform = open_clip.create_model_from_pretrained({address})
backbone.eval()
"""
ENCODE = "backbone.encode_image(images)"
NOTE = " The text encoder is an untrained placeholder of one layer: the model cannot compare texts."
NO_TEXT = {"context_length": 1, "vocab_size": 1, "width": 8, "heads": 1, "layers": 1}
RESIZE_MODES = {"squash": "squash", "pad": "longest", "crop": "shortest"}


def write_tower(
    backbone: Backbone, config: BackboneConfig, image: dict[str, Any], folder: Path
) -> None:
    """Write the backbone in open_clip's format.

    Args:
        image: the preprocessing settings.
    """
    state = dict(backbone.tower.state_dict())
    model = _model_config(config, backbone, image["size_px"])
    if hasattr(backbone.tower, "proj") and backbone.tower.proj is None:
        state["proj"] = torch.eye(backbone.dim)  # open_clip always builds one
    preprocess = {
        "size": image["size_px"],
        "mean": image["mean"],
        "std": image["std"],
        "interpolation": "bicubic",
        "resize_mode": RESIZE_MODES[image["fit"]],
        "fill_color": 255,
    }
    clip = open_clip.CLIP(**copy.deepcopy(model))
    texts = {key: value for key, value in clip.state_dict().items() if key[:7] != "visual."}
    images = {f"visual.{key}": value for key, value in state.items()}
    write_json(folder / FILES[0], {"model_cfg": model, "preprocess_cfg": preprocess})
    save_weights(texts | images, folder / FILES[1])


def open_tower(folder: Path) -> Callable[[Tensor], Tensor]:
    """Load the backbone as the README does."""
    model, _ = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    return model.eval().encode_image


def _model_config(config: BackboneConfig, backbone: Backbone, size_px: int) -> dict[str, Any]:
    known = open_clip.get_model_config(config.name)
    vision = {**known["vision_cfg"], "image_size": size_px}
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
        if config.features == "pooled":
            vision["timm_proj"] = "none"
    return {
        "embed_dim": backbone.dim,
        "quick_gelu": known.get("quick_gelu", config.kwargs.get("force_quick_gelu", False)),
        "vision_cfg": vision,
        "text_cfg": NO_TEXT,
    }
