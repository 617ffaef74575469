"""Backbone, head, preprocessing: everything between an image and its embedding."""

from guie.model.composition import Composition
from guie.model.embedder import Embedder, build_embedder, build_preprocess
from guie.model.loading import (
    at_size,
    open_beside,
    open_model,
    with_layers,
)
from guie.model.rebuilding import LoadedModel, composed, rebuild
from guie.model.scored import Scored
from guie.model.weights_file import ImageSize, save_model, save_weights

__all__ = [
    "Composition",
    "Embedder",
    "ImageSize",
    "LoadedModel",
    "Scored",
    "at_size",
    "build_embedder",
    "build_preprocess",
    "composed",
    "open_beside",
    "open_model",
    "rebuild",
    "save_model",
    "save_weights",
    "with_layers",
]
