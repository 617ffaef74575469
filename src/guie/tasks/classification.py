"""Classification with a margin: the challenge winners' way to train an embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from guie.config import RunConfig
from guie.losses import MarginSoftmax
from guie.model import build_embedder, save_model


class ClassificationTask(nn.Module):
    """Embedder and class weights. The weights are inside, so that DDP synchronises them."""

    def __init__(self, config: RunConfig, classes: int, weights: bool = True):
        super().__init__()
        self.embedder = build_embedder(config.model, weights)
        self.classes = MarginSoftmax(
            classes,
            self.embedder.dim,
            scale=config.task.scale,
            margin_rad=config.task.margin_rad,
        )

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Batch of images (B, 3, S, S) and labels (B,) -> mean loss and logs."""
        loss, cos_BC = self.classes(self.embedder(batch["images"]), batch["labels"])
        accuracy = (cos_BC.argmax(dim=1) == batch["labels"]).float().mean()
        return loss, {"loss": loss.detach(), "accuracy": accuracy}

    def save(self, folder: Path, stem: str, size_px: int) -> None:
        """Write `<stem>.safetensors`, the embedder."""
        save_model(self.embedder, folder / f"{stem}.safetensors", size_px)
