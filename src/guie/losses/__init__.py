"""Losses on embeddings. Each computes in fp32, whatever the model's precision."""

from guie.losses.margin import MarginSoftmax

__all__ = ["MarginSoftmax"]
