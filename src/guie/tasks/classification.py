"""Classification: the challenge winners' way to train an embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from guie.config import RunConfig
from guie.data import Classes
from guie.losses import MarginSoftmax, build_loss
from guie.model import build_embedder, save_model


class ClassificationTask(nn.Module):
    """Embedder and loss. The class weights are inside, so that DDP synchronises them."""

    def __init__(self, config: RunConfig, classes: Classes, weights: bool = True):
        super().__init__()
        self.embedder = build_embedder(config.model, weights)
        self.classes = build_loss(
            config.task.loss, self.embedder.dim, classes.sizes, classes.domains
        )

    def set_epoch(self, epoch: float) -> None:
        """Tell a scheduled margin how far the run is, in epochs."""
        if isinstance(self.classes, MarginSoftmax):
            self.classes.set_epoch(epoch)

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Batch of images (B, 3, S, S) and labels (B,) -> mean loss and logs."""
        loss, logs = self.classes(self.embedder(batch["images"]), batch["labels"])
        return loss, {"loss": loss.detach(), **logs}

    def save(self, folder: Path, stem: str, size_px: int) -> None:
        """Write `<stem>.safetensors`, the embedder."""
        save_model(self.embedder, folder / f"{stem}.safetensors", size_px)
