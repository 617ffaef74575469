"""Backbone, head, preprocessing: everything between an image and its embedding."""

from guie.model.embedder import (
    Embedder,
    LoadedModel,
    build_embedder,
    build_preprocess,
    load_model,
    save_model,
)
from guie.model.source import open_model

__all__ = [
    "Embedder",
    "LoadedModel",
    "build_embedder",
    "build_preprocess",
    "load_model",
    "open_model",
    "save_model",
]
