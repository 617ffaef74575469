"""Build an embedder and its preprocessing from their config."""

from __future__ import annotations

from guie.config.model import Fit, ModelConfig
from guie.models.adapters.attaching import adapt
from guie.models.backbones import build_backbone
from guie.models.backbones.base import Backbone
from guie.models.embedder import Embedder
from guie.models.head import Head, Reduction
from guie.models.preprocess import Preprocess


def build_embedder(config: ModelConfig, weights: bool = True) -> Embedder:
    """Build the configured embedder, with a pretrained backbone unless `weights` is False."""
    backbone = build_backbone(config.backbone, config.image.size_px, weights)
    adapt(backbone, config)
    if config.layers:
        backbone.take_layers(config.layers)
    head = config.head
    if head is None:
        return Embedder(backbone, None)
    reduction = Reduction(head.dim, head.reduced_dim) if head.reduced_dim else None
    return Embedder(backbone, Head(head, backbone.dim), reduction)


def build_preprocess(
    config: ModelConfig, backbone: Backbone, size_px: int, fit: Fit | None = None
) -> Preprocess:
    """Build the preprocessing shared by training, validation, embedding and the submission.

    Args:
        fit: replaces the config's, for a stage whose training preprocessing differs from evaluation's.
    """
    image = config.image
    mean, std = image.mean or backbone.mean, image.std or backbone.std
    return Preprocess(size_px, mean, std, fit or image.fit, pad_color=image.pad_color)
