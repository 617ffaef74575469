"""Pretrained image backbones with one interface; to add a library, subclass `Backbone` and register it."""

import sys

from guie.base.errors import UserError
from guie.config.model import BackboneConfig
from guie.models.backbones.base import BACKBONES, Backbone, readable_errors, register
from guie.models.backbones.open_clip import OpenClip
from guie.models.backbones.timm import Timm
from guie.models.pretrained import find_weights

__all__ = ["Backbone", "build_backbone", "register"]

register(OpenClip)
register(Timm)


def build_backbone(
    config: BackboneConfig, size_px: int | None = None, weights: bool = True
) -> Backbone:
    """Create the backbone with its pretrained weights; `weights=False`: random, to be loaded later.

    Without `size_px`, images have the size of pretraining. Modules of `reset` are drawn anew.

    Raises UserError for an unknown name, tag, file or module.
    """
    with readable_errors(config):
        found = find_weights(config) if weights else None
        file = found.file if found else None
        backbone = BACKBONES[config.library].build(config, size_px, file)
    if file and not config.tag:
        print(
            f"{file}: names no mean and std; assuming mean {backbone.mean}, std {backbone.std}, unless"
            " model.image sets them; pretrained: {tag: ..., file: ...} takes those of a tag",
            file=sys.stderr,
        )
    backbone.new = config.reset if config.pretrained else [""]
    if config.reset and weights:  # as the library initialises them
        state = backbone.tower.state_dict()
        fresh = build_backbone(config, size_px, weights=False).tower.state_dict()
        for name in config.reset:
            own = {key: value for key, value in fresh.items() if f"{key}.".startswith(f"{name}.")}
            if not own:
                kind = type(backbone.tower).__name__
                raise UserError(
                    f"model.backbone.reset: {kind} has no weights in {name!r}; name one of its modules"
                )
            state |= own
        backbone.tower.load_state_dict(state)
    return backbone
