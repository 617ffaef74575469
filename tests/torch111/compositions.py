"""Compositions of two small random models, each kind of join, view and reduction among them."""

from typing import Any

import torch

from guie.config.ensemble import MemberConfig
from guie.config.model import ModelConfig
from guie.models import LoadedModel
from guie.models.embedder import build_embedder
from guie.models.opening import composed, rebuild

WIDE, SQUARE = {"aspect": {"above": 1.0}}, {"aspect": {"max": 1.0}}
BY_SHAPE = [{"part": 0.9, **SQUARE}, WIDE, {"fit": "pad", "part": 0.9, **WIDE}]
ON_BLACK = [*BY_SHAPE[:2], {**BY_SHAPE[2], "pad_color": "black"}]
CROPS = [{"part": 0.875, "at": at} for at in ("top_left", "bottom_right", "center")]
KINDS: dict[str, dict[str, Any]] = {
    "side by side, weighted, reduced": {"weights": [1.0, 2.0], "reduced_dim": 16},
    "average": {"join": "average"},
    "crops and a mirror": {"views": [*CROPS, {"flip": True}]},
    "bilinear, not antialiased": {"views": [{"resize": "bilinear", "antialias": False}]},
    "by shape": {"views": BY_SHAPE},
    "raw outputs, on black": {"join": "average", "average": "raw", "views": ON_BLACK},
    "by shape and domain": {"views": [*BY_SHAPE, {"fit": "pad", "domains": ["b"]}]},
    "a composition of one by shape": {"views": [{"flip": True}, {"resize": "bilinear"}]},
}


def build(name: str) -> LoadedModel:
    """The composition, its weights random but the same each time."""
    torch.manual_seed(0)
    how = dict(KINDS[name])
    first, second = _model(32, "squash"), _model(48, "pad")
    members = [first, first] if how.get("join") == "average" else [first, second]
    if name == "a composition of one by shape":
        members = [composed([first], views=BY_SHAPE), second]
    dim, fitted = sum(member.embedder.dim for member in members), {}
    if "reduced_dim" in how:
        fitted["reduction.mean_D"] = torch.randn(dim) / 10
        fitted["reduction.weight_DR"] = torch.randn(dim, how["reduced_dim"])
    if "domain" in name:
        how["domains"] = ["a", "b"]
        fitted["classifier.weight_DN"] = torch.randn(dim, 2)
        fitted["classifier.bias_N"] = torch.zeros(2)
    return composed(members, fitted, **how)


def _model(size_px: int, fit: str) -> LoadedModel:
    head = {"dim": 24, "norm": "bn", "image_shape": True}
    config = {"backbone": {"library": "open_clip", "name": "guie-tiny"}, "head": head}
    image = {"size_px": size_px, "fit": fit, "mean": [0.5] * 3, "std": [0.25] * 3}
    model = ModelConfig.model_validate(config | {"image": image})
    state = build_embedder(model).state_dict()
    return rebuild(MemberConfig(source=f"{size_px} px", model=model), state, f"{size_px} px")
