"""Open any model by one word: a run folder, or a library's model at its native dimension."""

from __future__ import annotations

from pathlib import Path

from guie.base.errors import UserError
from guie.config.model import BackboneConfig, ImageConfig, ModelConfig
from guie.model.backbone import build_backbone
from guie.model.embedder import Embedder, build_preprocess
from guie.model.loading import LoadedModel, load_model

LIBRARIES = ("open_clip", "timm")


def open_model(source: str, size_px: int | None = None, fit: str = "squash") -> LoadedModel:
    """Open `runs/demo`, `open_clip:ViT-H-14:laion2b_s32b_b79k` or `timm:resnet50:a1_in1k`.

    The part after the second colon is a hub tag or a weights file; without it the weights are
    random. `size_px` and `fit` apply to library models; a run states its own.
    Raises UserError for anything else.
    """
    library, _, rest = source.partition(":")
    if library not in LIBRARIES:
        if not Path(source).is_dir():
            raise UserError(
                f"{source}: no such run folder; a library's model is written open_clip:NAME:TAG or"
                " timm:NAME:TAG"
            )
        return load_model(source)
    name, _, pretrained = rest.partition(":")
    config = BackboneConfig(library=library, name=name, pretrained=pretrained or None)
    backbone = build_backbone(config, size_px)
    image = ImageConfig(size_px=backbone.size_px, fit=fit)
    model = ModelConfig(backbone=config, image=image, head=None)
    preprocess = build_preprocess(model, backbone, backbone.size_px)
    return LoadedModel(Embedder(backbone, None).eval(), preprocess, model, source)
