"""Backbone, head, preprocessing: everything between an image and its embedding."""

from guie.model.composition import Ensemble
from guie.model.embedder import Embedder, build_embedder, build_preprocess
from guie.model.loading import (
    LoadedModel,
    open_beside,
    open_model,
    rebuild,
    side_by_side,
    with_layers,
)
from guie.model.scored import Scored
from guie.model.weights_file import ImageSize, save_model, save_weights

__all__ = [
    "Embedder",
    "Ensemble",
    "ImageSize",
    "LoadedModel",
    "Scored",
    "build_embedder",
    "build_preprocess",
    "open_beside",
    "open_model",
    "rebuild",
    "save_model",
    "save_weights",
    "side_by_side",
    "with_layers",
]
