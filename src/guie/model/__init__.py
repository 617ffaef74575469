"""Backbone, head, preprocessing: everything between an image and its embedding."""

from guie.model.composition import Ensemble
from guie.model.embedder import Embedder, build_embedder, build_preprocess
from guie.model.loading import (
    LoadedModel,
    load_model,
    rebuild,
    rebuild_ensemble,
    save_model,
    save_weights,
    self_contained,
    side_by_side,
)
from guie.model.scored import Scored
from guie.model.source import open_model

__all__ = [
    "Embedder",
    "Ensemble",
    "LoadedModel",
    "Scored",
    "build_embedder",
    "build_preprocess",
    "load_model",
    "open_model",
    "rebuild",
    "rebuild_ensemble",
    "save_model",
    "save_weights",
    "self_contained",
    "side_by_side",
]
