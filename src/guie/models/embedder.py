"""Backbone and head as one module, built from a config with its preprocessing."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.config.model import Fit, ModelConfig
from guie.data.preprocess import Preprocess
from guie.models.adapters.attaching import adapt
from guie.models.backbones import build_backbone
from guie.models.backbones.base import Backbone
from guie.models.head import Head, Reduction


class Embedder(nn.Module):
    """Map images to embeddings of unit length. Without a head: the backbone's features, normalised.

    Attributes: `dim` (D).
    """

    cache_key = "Embedder"  # of cached features; stays if the class is renamed

    def __init__(self, backbone: Backbone, head: Head | None, reduction: Reduction | None = None):
        super().__init__()
        self.backbone, self.head, self.reduction = backbone, head, reduction
        self.dim = (reduction or head or backbone).dim
        self.normalises = True  # False in an ensemble with `average: raw`

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """Map preprocessed images (B, 3, S, S) to float32 embeddings (B, D), of unit length.

        With `normalises` False they are the head's raw outputs. Some heads need `image_shapes`.
        """
        return self.embed(self.backbone(images_BCHW), shapes_B3)

    def embed(self, feat_BF: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """Map features (B, F) to embeddings as `forward` does, without the backbone."""
        return self.unit(self.project(feat_BF, shapes_B3))

    def project(self, feat_BF: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """Map features (B, F) to the head's output (B, D), before any normalisation and reduction."""
        return self.head(feat_BF, shapes_B3) if self.head else feat_BF

    def unit(self, emb_BD: Tensor) -> Tensor:
        """Map the output of `project` to embeddings (B, D), as `forward` returns them."""
        if self.head and self.head.parts > 1:  # all count equally, whatever their norm
            parts = emb_BD.float().chunk(self.head.parts, dim=-1)
            emb_BD = torch.cat([functional.normalize(part, dim=-1) for part in parts], dim=-1)
        emb_BD = emb_BD.float()
        if self.reduction:
            emb_BD = self.reduction(functional.normalize(emb_BD, dim=-1)).float()
        return functional.normalize(emb_BD, dim=-1) if self.normalises else emb_BD


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

    `fit` replaces the config's, for a stage whose training preprocessing differs from evaluation's.
    """
    image = config.image
    mean, std = image.mean or backbone.mean, image.std or backbone.std
    return Preprocess(size_px, mean, std, fit or image.fit, pad_color=image.pad_color)
