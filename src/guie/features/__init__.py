"""Features of images under a model, computed once and kept on disk."""

from guie.features.cache import FeatureCache, Features
from guie.features.computing import cached_features, embed_for

__all__ = ["FeatureCache", "Features", "cached_features", "embed_for"]
