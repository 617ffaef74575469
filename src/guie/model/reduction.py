"""Fewer dimensions after training, by a linear map that is fitted and not trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Reduction(nn.Module):
    """An affine map of the embedding, such as PCA on images of all domains (the 6th place's).

    The embedder brings its result to unit length again: the challenge ranks by Euclidean distance,
    which is a cosine's order between unit vectors alone. It is then the cosine about the mean of
    the images that the map was fitted on, and how much of a vector the map left out, which differs
    from image to image, does not count as distance.

    Until its buffers are loaded it keeps the first R dimensions. Shapes: B images, D dimensions
    before, R after.
    """

    def __init__(self, dim: int, reduced_dim: int):
        super().__init__()
        self.dim = reduced_dim
        self.mean_D: Tensor
        self.weight_DR: Tensor
        self.register_buffer("mean_D", torch.zeros(dim))
        self.register_buffer("weight_DR", torch.eye(dim, reduced_dim))

    def forward(self, emb_BD: Tensor) -> Tensor:
        """(B, D) -> (B, R), not of unit length."""
        return (emb_BD - self.mean_D) @ self.weight_DR
