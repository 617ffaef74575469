"""Classification: the challenge winners' way to train an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from guie.config import RunConfig
from guie.data import Classes
from guie.losses import MarginSoftmax, build_loss
from guie.model import build_embedder
from guie.tasks.base import Task


class ClassificationTask(Task):
    """Embedder and loss, with the class weights."""

    def __init__(self, config: RunConfig, classes: Classes, weights: bool = True):
        super().__init__(config)
        self.embedder = build_embedder(config.model, weights)
        self.classes = build_loss(
            config.task.loss, self.embedder.dim, classes.sizes, classes.domains
        )

    def set_epoch(self, epoch: float) -> None:
        """Tell a scheduled margin how far the run is, in epochs."""
        if isinstance(self.classes, MarginSoftmax):
            self.classes.set_epoch(epoch)

    def open_stage(self, number: int, class_ids: Sequence[int]) -> None:
        """As of every task; and which classes compete, their weights carried on or anew."""
        super().open_stage(number, class_ids)
        stage = self.config.stages[number]
        if isinstance(self.classes, MarginSoftmax):
            self.classes.rule.set_margin(stage.margin)
            self.classes.open_stage(
                class_ids,
                alone=stage.softmax_over == "stage",
                reset=(self.config.seed, number) if stage.classes == "reset" else None,
            )

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Batch of images (B, 3, S, S), or features (B, F), and labels (B,) -> loss and logs."""
        cached = "features" in batch
        feat_BF = batch["features"] if cached else self.embedder.backbone(batch["images"])
        emb_BD = self.embedder.embed(feat_BF, batch.get("shapes"))
        loss, logs = self.classes(emb_BD, batch["labels"])
        return self.finished(batch, feat_BF, loss, logs)
