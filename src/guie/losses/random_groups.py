"""Random ensembles: each member classifies different random groups of classes.

Xuan et al., Deep Randomized Ensembles for Metric Learning, ECCV 2018. Shapes: B images, D dimensions of
the embedding, L members, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.losses import LossConfig, MetaclassesConfig
from guie.losses.base import Criterion
from guie.losses.build import build_loss


class MetaclassLoss(Criterion):
    """Mean over members of a loss on groups of classes; each member has its part of the embedding.

    Args:
        config: the loss of each member.
        groups: number of groups, first member and seed.
        dim: D.
        members: L, which split the embedding into equal parts.
        sizes: training images of every class, by id.

    Raises UserError if there are more groups than classes.
    """

    def __init__(
        self,
        config: LossConfig,
        groups: MetaclassesConfig,
        dim: int,
        members: int,
        sizes: Sequence[int],
    ):
        super().__init__()
        if groups.count > len(sizes):
            raise UserError(
                f"task.metaclasses.count: {groups.count} exceeds the {len(sizes)} classes; lower it"
            )
        numbers = range(groups.member, groups.member + members)
        group_LC = np.stack(
            [partition(len(sizes), groups.count, (groups.seed, n)) for n in numbers]
        )
        self.group_LC: Tensor
        self.register_buffer("group_LC", torch.from_numpy(group_LC), persistent=False)
        alike = ["all"] * groups.count  # a group has classes of every domain
        self.members = nn.ModuleList(
            build_loss(
                config, dim // members, np.bincount(own_C, sizes).astype(int).tolist(), alike
            )
            for own_C in group_LC
        )

    def forward(self, emb_BD: Tensor, label_B: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss over members and their mean logs, for unit-length embeddings and class ids."""
        parts = emb_BD.chunk(len(self.members), dim=1)
        found = [
            member(functional.normalize(part, dim=1), own_C[label_B])
            for member, part, own_C in zip(self.members, parts, self.group_LC, strict=True)
        ]
        logs = {name: torch.stack([one[name] for _, one in found]).mean() for name in found[0][1]}
        return torch.stack([loss for loss, _ in found]).mean(), logs

    def set_epoch(self, epoch: float) -> None:
        for member in self._criteria():
            member.set_epoch(epoch)

    def begin_stage(
        self,
        class_ids: Sequence[int],
        *,
        margin: float | None = None,
        alone: bool = False,
        reset: Sequence[int] | None = None,
    ) -> None:
        for number, (member, own_C) in enumerate(zip(self._criteria(), self.group_LC, strict=True)):
            groups = own_C[list(class_ids)].unique().tolist()
            again = reset and (*reset, number)
            member.begin_stage(groups, margin=margin, alone=alone, reset=again)

    def _criteria(self) -> list[Criterion]:
        return cast("list[Criterion]", list(self.members))


def partition(classes: int, groups: int, seed: Sequence[int]) -> np.ndarray:
    """Return a random group per class, (C,); group sizes differ by at most 1."""
    drawn = np.random.default_rng(list(seed)).permutation(classes)
    group_C = np.empty(classes, np.int64)
    group_C[drawn] = np.arange(classes) % groups
    return group_C
