"""Margin softmax: a softmax over class cosines in which the own class has a handicap.

Shapes: B images, D dimensions, C classes, k centres a class.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.losses.processes import at_least_fp32
from guie.losses.rules import CurricularFace, MarginRule
from guie.losses.streamed import Hardening, softmax_terms


class MarginSoftmax(nn.Module):
    """Cross-entropy of a margin softmax, with its class weights.

    With several centres it is sub-center ArcFace (Deng et al., ECCV 2020): a class is as near as its
    nearest centre. With edges it is a softmax per domain (UnED's USC).

    Args:
        classes: C, how many classes.
        dim: D, the embedding's dimension.
        rule: the margin.
        scale: s, the inverse temperature of the softmax.
        centers: k.
        edges: bounds of the domains' class ranges, from 0 to C; None: one softmax over all classes.
        block_logits: logits computed at a time; None: what suits the device.
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        rule: MarginRule,
        *,
        scale: float,
        centers: int = 1,
        edges: Sequence[int] | None = None,
        block_logits: int | None = None,
    ):
        super().__init__()
        self.rule, self.scale, self.centers = rule, scale, centers
        self.edges, self.block_logits = edges, block_logits
        # Rows are normalised, so their length only divides the step that Adam takes: rows of
        # length 8 (a standard normal) would turn 25 times more slowly than these.
        weight_CD = torch.empty(classes * centers, dim)
        self.weight_CD = nn.Parameter(nn.init.xavier_normal_(weight_CD))

    def set_epoch(self, epoch: float) -> None:
        """Tell a scheduled margin how far training is, in (fractional) epochs from 0."""
        self.rule.set_epoch(epoch)

    def forward(self, emb_BD: Tensor, label_B: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Unit-length embeddings and class ids -> mean loss, and the accuracy without margin."""
        with torch.autocast(emb_BD.device.type, enabled=False):
            label_B, order_B = label_B.sort(stable=True)
            emb_BD = at_least_fp32(emb_BD[order_B])
            weight_CD = self.weight_CD.to(emb_BD.dtype)
            terms = softmax_terms(
                self.scale * emb_BD,
                weight_CD,
                label_B,
                centers=self.centers,
                edges=self.edges,
                hardening=self._hardening(emb_BD.detach(), weight_CD.detach(), label_B),
                block_logits=self.block_logits,
            )
            own_B = self.scale * self.rule.own(terms.own_B / self.scale, label_B)
            # log(1 + exp(others - own)): exact where the softmax of the own class is nearly 1.
            loss = -functional.logsigmoid(own_B - terms.others_B).mean()
            accuracy = (terms.own_B.detach() > terms.nearest_B).float().mean()
        return loss, {"accuracy": accuracy}

    def _hardening(self, emb_BD: Tensor, weight_CD: Tensor, label_B: Tensor) -> Hardening | None:
        if not isinstance(self.rule, CurricularFace):
            return None
        own_BkD = weight_CD.unflatten(0, (-1, self.centers))[label_B]
        own_BkD = functional.normalize(own_BkD, dim=-1)
        cos_B = (own_BkD * emb_BD[:, None]).sum(-1).amax(1)
        return self.rule.hardening(cos_B, label_B, self.scale)
