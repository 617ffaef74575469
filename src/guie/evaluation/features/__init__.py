"""Features of images under a model, computed once and kept on disk."""

from guie.evaluation.features.cache import FeatureCache, Features
from guie.evaluation.features.computing import Embed, cached_features, embed_for

__all__ = ["Embed", "FeatureCache", "Features", "cached_features", "embed_for"]
