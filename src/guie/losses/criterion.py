"""What every loss on embeddings is to training."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Criterion(nn.Module):
    """Takes unit-length embeddings (B, D) and class ids (B,), returns (loss, logs).

    Its parameters, class weights or proxies, are the part `classes` of a task.
    """

    def forward(self, emb_BD: Tensor, label_B: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss, a number, and what is to be logged beside it."""
        raise NotImplementedError

    def set_epoch(self, epoch: float) -> None:
        """Tell what is scheduled how far training is, in (fractional) epochs from 0."""

    def open_stage(
        self,
        class_ids: Sequence[int],
        *,
        margin: float | None = None,
        alone: bool = False,
        reset: Sequence[int] | None = None,
    ) -> None:
        """Begin a stage, when it is settled what it trains and before an optimiser takes it.

        Args:
            class_ids: classes with training images in the stage.
            margin: of the stage alone, for all classes; None: the loss's own.
            alone: these classes compete among themselves, not with all.
            reset: integers to draw their weights from; None: they stay as they are.
        """
