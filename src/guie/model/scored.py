"""From an image as the challenge's scorer hands it over to its embedding: what is exported."""

from __future__ import annotations

from torch import Tensor, nn

from guie.model.looks import AnyPreprocess
from guie.model.shapes import image_shapes


class Scored(nn.Module):
    """uint8 (B, 3, H, W) of any size -> (B, D); the same module eager and in TorchScript.

    Args:
        embedder: images (B, 3, S, S) and shapes (B, 3) -> (B, D).
    """

    def __init__(self, preprocess: AnyPreprocess, embedder: nn.Module):
        super().__init__()
        self.preprocess = preprocess
        self.embedder = embedder

    def forward(self, images: Tensor) -> Tensor:
        # The preprocessing leaves its result on its own device, which is the embedder's.
        prepared = self.preprocess(images)
        return self.embedder(prepared, image_shapes(images).to(prepared.device))
