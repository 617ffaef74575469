"""Backbone, head, preprocessing: everything between an image and its embedding."""

from guie.model.embedder import (
    Embedder,
    LoadedModel,
    build_embedder,
    build_preprocess,
    load_model,
    rebuild,
    save_model,
)
from guie.model.scored import Scored
from guie.model.source import open_model

__all__ = [
    "Embedder",
    "LoadedModel",
    "Scored",
    "build_embedder",
    "build_preprocess",
    "load_model",
    "open_model",
    "rebuild",
    "save_model",
]
