"""Nested embeddings: the first numbers of an embedding are an embedding too.

Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022 (arXiv 2205.13147), equation 1, with equal
weights. There a classifier has plain logits; here each width has any loss on unit vectors. Shapes: B images,
D dimensions of the whole embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.config.losses import LossConfig
from guie.losses.base import Criterion, LossStage
from guie.losses.build import build_loss


class NestedLoss(Criterion):
    """Mean over widths of a loss on the first numbers of the embedding, each with its own class weights.

    The paper sums the losses. Their mean keeps the length of the gradient, for clipping and weight decay.

    Args:
        config: the loss of each width.
        widths: numbers of each nested embedding, rising, the whole one (D) last.
        sizes: training images of every class, by id.
        domains: domain of every class, by id.
    """

    def __init__(
        self,
        config: LossConfig,
        widths: Sequence[int],
        sizes: Sequence[int],
        domains: Sequence[str],
    ):
        super().__init__()
        self.widths = tuple(widths)
        self.losses = nn.ModuleList(build_loss(config, dim, sizes, domains) for dim in widths)

    def forward(self, emb_BD: Tensor, label_B: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss, and the logs of the whole embedding."""
        found = [
            loss(functional.normalize(emb_BD[:, :width], dim=1), label_B)
            for loss, width in zip(self.losses, self.widths, strict=True)
        ]
        return torch.stack([loss for loss, _ in found]).mean(), found[-1][1]

    def begin_stage(self, class_ids: Sequence[int], stage: LossStage) -> None:
        for number, loss in enumerate(cast("list[Criterion]", self.losses)):
            loss.begin_stage(class_ids, stage.of_part(number))
