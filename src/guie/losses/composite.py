"""Losses made of several: each on its part of the embedding, with class weights of its own.

Shapes: B images, D dimensions of the whole embedding, L members, C classes.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.losses import LossConfig, MetaclassesConfig
from guie.losses.base import Criterion, LossAndLogs, LossStage
from guie.losses.build import build_loss


class NestedLoss(Criterion):
    """Mean over widths of a loss on the first numbers of the embedding, which are an embedding too.

    Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022 (arXiv 2205.13147), equation 1, with
    equal weights. There a classifier has plain logits; here each width has any loss on unit vectors. The
    paper sums the losses. Their mean keeps the length of the gradient, for clipping and weight decay.
    Widths rise; the last is the whole one (D).
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

    def forward(self, emb_BD: Tensor, label_B: Tensor, raw_BD: Tensor | None = None) -> LossAndLogs:
        """Return the mean loss, and the logs of the whole embedding."""
        found = []
        for loss, width in zip(self.losses, self.widths, strict=True):
            raw = None if raw_BD is None else raw_BD[:, :width]
            found.append(loss(functional.normalize(emb_BD[:, :width], dim=1), label_B, raw))
        return torch.stack([loss for loss, _ in found]).mean(), found[-1][1]

    def begin_stage(self, class_ids: Sequence[int], stage: LossStage) -> None:
        for number, loss in enumerate(cast("list[Criterion]", self.losses)):
            loss.begin_stage(class_ids, stage.of_part(number))


class MetaclassLoss(Criterion):
    """Mean over members of a loss on random groups of classes, other groups for each member.

    Xuan et al., Deep Randomized Ensembles for Metric Learning, ECCV 2018.

    Args:
        groups: number of groups, first member and seed.
        members: L, which split the embedding into equal parts.

    Raises UserError if there are more groups than classes, or fewer than domains that have their own.
    """

    def __init__(
        self,
        config: LossConfig,
        groups: MetaclassesConfig,
        dim: int,
        members: int,
        sizes: Sequence[int],
        domains: Sequence[str],
    ):
        super().__init__()
        if groups.count > len(sizes):
            raise UserError(
                f"task.metaclasses.count: {groups.count} exceeds the {len(sizes)} classes; lower it"
            )
        if groups.within_domains and groups.count < len(set(domains)):
            raise UserError(
                f"task.metaclasses.count: {groups.count} is below the {len(set(domains))} domains;"
                " raise it, or set within_domains to false"
            )
        apart = domains if groups.within_domains else ["all"] * len(sizes)
        numbers = range(groups.member, groups.member + members)
        group_LC = np.stack([partition(apart, groups.count, (groups.seed, n)) for n in numbers])
        self.group_LC = torch.from_numpy(group_LC)  # on the CPU, like labels
        alike = ["all"] * groups.count  # one softmax over the groups of all domains
        self.members = nn.ModuleList()
        for own_C in group_LC:
            images = np.bincount(own_C, sizes).astype(int).tolist()  # of each group
            self.members.append(build_loss(config, dim // members, images, alike))

    def forward(self, emb_BD: Tensor, label_B: Tensor, raw_BD: Tensor | None = None) -> LossAndLogs:
        """Return the mean loss over members and their mean logs, for unit-length embeddings and class ids."""
        label_B = label_B.cpu()
        count, found = len(self.members), []
        raws = [None] * count if raw_BD is None else raw_BD.chunk(count, dim=1)
        parts = zip(self.members, emb_BD.chunk(count, dim=1), raws, self.group_LC, strict=True)
        for member, part, raw, own_C in parts:
            found.append(member(functional.normalize(part, dim=1), own_C[label_B], raw))
        logs = {name: torch.stack([one[name] for _, one in found]).mean() for name in found[0][1]}
        return torch.stack([loss for loss, _ in found]).mean(), logs

    def begin_stage(self, class_ids: Sequence[int], stage: LossStage) -> None:
        for number, member in enumerate(cast("list[Criterion]", self.members)):
            groups = self.group_LC[number, list(class_ids)].unique().tolist()
            member.begin_stage(groups, stage.of_part(number))


def partition(domains: Sequence[str], groups: int, seed: Sequence[int]) -> np.ndarray:
    """Return a random group per class, (C,), of classes of one domain.

    Within a domain, group sizes differ by at most 1. The next group goes to the domain with the most classes
    per group. There are as many groups as domains, or more.
    """
    drawn = np.random.default_rng(list(seed)).permutation(len(domains))
    domain_C = np.unique(domains, return_inverse=True)[1]
    classes_of = np.bincount(domain_C)
    groups_of = np.ones_like(classes_of)
    for _ in range(groups - len(groups_of)):
        groups_of[(classes_of / groups_of).argmax()] += 1
    group_C = np.empty(len(domains), np.int64)
    for domain, (count, classes) in enumerate(zip(groups_of, classes_of, strict=True)):
        first = groups_of[:domain].sum()
        group_C[drawn[domain_C[drawn] == domain]] = first + np.arange(classes) % count
    return group_C
