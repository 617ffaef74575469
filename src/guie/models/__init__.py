"""Backbone, head and preprocessing: everything between an image and its embedding."""

from guie.models.opening import LoadedModel, narrowed, open_model, with_layers

__all__ = ["LoadedModel", "narrowed", "open_model", "with_layers"]
