"""Write a backbone in timm's layout: config.json and model.safetensors, for `timm.create_model`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
from torch import Tensor

from guie.base.files import write_json
from guie.config.model import BackboneConfig
from guie.models.backbones import Backbone
from guie.models.patches import patch_size
from guie.models.weights import save_weights

FILES = ("config.json", "model.safetensors")
IMPORT = "timm"
LOAD = """\
backbone = timm.create_model({address}, pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(backbone))
"""
ENCODE = "backbone(images)"
NOTE = ""
# timm pads with the mean colour, we with white: the code in the README pads before the transform.
CROP_MODES = {"squash": "squash", "pad": "squash", "crop": "center"}


def write_tower(
    backbone: Backbone, config: BackboneConfig, image: dict[str, Any], folder: Path
) -> None:
    """Write the backbone in timm's format.

    Args:
        image: the preprocessing settings.
    """
    size_px, tower = image["size_px"], backbone.tower
    arguments: dict[str, Any] = {"num_classes": 0, **config.kwargs}
    if patch_size(tower):
        arguments["img_size"] = size_px
    described = {
        "architecture": config.name,
        "num_classes": 0,
        "num_features": backbone.dim,
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [3, size_px, size_px],
            "fixed_input_size": bool(patch_size(tower)),
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "crop_mode": CROP_MODES[image["fit"]],
            "mean": image["mean"],
            "std": image["std"],
            **{key: tower.pretrained_cfg[key] for key in ("first_conv", "classifier")},
        },
        "model_args": arguments,
    }
    write_json(folder / "config.json", described)
    save_weights(tower.state_dict(), folder / "model.safetensors")


def open_tower(folder: Path) -> Callable[[Tensor], Tensor]:
    """Load the backbone as the README does."""
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
