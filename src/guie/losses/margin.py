"""Margin softmax: cosine logits with an additive angular margin.

Deng et al., ArcFace, CVPR 2019, eq. 3. With margin 0 it is the normalised softmax of UnED's
baselines. Shapes: B images, D dimensions, C classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

# Half a float32 ulp below 1 is 6e-8; at this distance sin(theta) and its gradient are finite.
EDGE = 1e-7


class MarginSoftmax(nn.Module):
    """ArcFace with its class weights.

    Args:
        classes: C, how many classes.
        dim: D, the embedding's dimension.
        scale: s, the inverse temperature of the softmax.
        margin_rad: m, added to the angle between an embedding and its own class, in radians.
    """

    def __init__(self, classes: int, dim: int, *, scale: float, margin_rad: float):
        super().__init__()
        self.scale, self.margin_rad = scale, margin_rad
        # Rows are normalised, so their length only divides the step that Adam takes: rows of
        # length 8 (a standard normal) would turn 25 times more slowly than these.
        self.weight_CD = nn.Parameter(nn.init.xavier_normal_(torch.empty(classes, dim)))

    def forward(self, emb_BD: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
        """Unit-length embeddings and class ids -> (mean loss, cosines (B, C) without margin)."""
        with torch.autocast(emb_BD.device.type, enabled=False):
            weight_CD = functional.normalize(self.weight_CD.float(), dim=-1)
            cos_BC = emb_BD.float() @ weight_CD.T
            own_B1 = label_B[:, None]
            target_B1 = add_angular_margin(cos_BC.gather(1, own_B1), self.margin_rad)
            logit_BC = self.scale * cos_BC.scatter(1, own_B1, target_B1)
            return functional.cross_entropy(logit_BC, label_B), cos_BC.detach()


def add_angular_margin(cos: Tensor, margin_rad: float) -> Tensor:
    """cos(theta) -> cos(theta + m), monotonous over all of [0, pi], gradient finite at both ends.

    Past theta = pi - m the cosine would rise again; there the straight line
    cos(theta) - m sin(m) goes on falling instead (as ArcFace's authors do).
    """
    cos = cos.clamp(-1 + EDGE, 1 - EDGE)
    sin = (1 - cos.square()).sqrt()
    shifted = cos * math.cos(margin_rad) - sin * math.sin(margin_rad)
    line = cos - margin_rad * math.sin(margin_rad)
    return torch.where(cos > -math.cos(margin_rad), shifted, line)
