"""Backbone, head and preprocessing: everything between an image and its embedding."""

from __future__ import annotations

from guie.models.embedder import Embedder, ExportModule, build_embedder, build_preprocess
from guie.models.ensemble import Ensemble
from guie.models.loading import (
    LoadedModel,
    at_size,
    composed,
    narrowed,
    open_beside,
    open_model,
    rebuild,
    with_layers,
)
from guie.models.weights import ImageSize, save_model, save_weights

__all__ = [
    "Ensemble",
    "Embedder",
    "ImageSize",
    "LoadedModel",
    "ExportModule",
    "at_size",
    "build_embedder",
    "build_preprocess",
    "composed",
    "narrowed",
    "open_beside",
    "open_model",
    "rebuild",
    "save_model",
    "save_weights",
    "with_layers",
]
