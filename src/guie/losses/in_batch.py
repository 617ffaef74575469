"""Losses on pairs and triplets within a batch.

Shapes: B images, D dimensions, P ordered pairs of two images of one class.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from guie.config.losses import (
    BatchAllConfig,
    ContrastiveLossConfig,
    HyperbolicConfig,
    OwnInBatchConfig,
)
from guie.losses.base import Criterion, LossAndLogs, at_least_fp32, gather_rows, on_device_of

# Lower bound of squared hyperbolic distances, in units of the curvature: the root has no finite slope at 0
CLOSEST = 1e-7


class InBatchLoss(Criterion):
    """A loss on the batch of all processes, in fp32."""

    def forward(self, emb_BD: Tensor, label_B: Tensor, raw_BD: Tensor | None = None) -> LossAndLogs:
        """Return the loss of the global batch for unit-length embeddings and class ids; no logs."""
        with torch.autocast(emb_BD.device.type, enabled=False):
            emb_BD = gather_rows(at_least_fp32(emb_BD))
            return self.of_batch(emb_BD, gather_rows(label_B.cpu())), {}

    def of_batch(self, emb_BD: Tensor, label_B: Tensor) -> Tensor:
        """Return the loss of one global batch; the class ids are on the CPU."""
        raise NotImplementedError


class OwnInBatchLoss(InBatchLoss):
    """One of the losses below, with the settings of its config."""

    def __init__(self, config: OwnInBatchConfig):
        super().__init__()
        self.config = config

    def of_batch(self, emb_BD: Tensor, label_B: Tensor) -> Tensor:
        return IN_BATCH[type(self.config)](self.config, emb_BD, label_B)


def batch_all_triplet(config: BatchAllConfig, emb_BD: Tensor, label_B: Tensor) -> Tensor:
    """Return the mean of softplus(d(a, p) - d(a, n)) over all triplets, d the squared Euclidean distance.

    Vo and Hays, Generalization in Metric Learning: Should the Embedding Layer be Embedding Layer?,
    WACV 2019, section 4.4; the formula printed there has the opposite sign. Without a triplet it is 0.
    """
    anchor_P, positive_P = (on_device_of(rows_P, emb_BD) for rows_P in positive_pairs(label_B))
    label_B = on_device_of(label_B, emb_BD)
    negative_PB = label_B[anchor_P, None] != label_B
    # All lengths are equal, so squared distances differ by twice the inner product.
    near_BB = 2 * config.length**2 * (emb_BD @ emb_BD.T)
    excess_PB = near_BB[anchor_P] - near_BB[anchor_P, positive_P][:, None]
    total = torch.where(negative_PB, functional.softplus(excess_PB), 0.0).sum()
    return total / negative_PB.sum().clamp(min=1)


def contrastive(config: ContrastiveLossConfig, emb_BD: Tensor, label_B: Tensor) -> Tensor:
    """Return half the sum of two means: d of positive pairs, margin - d of negative pairs within the margin.

    Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006, as in Vo and
    Hays' nams.py:243-274: d is the squared Euclidean distance, where Hadsell et al. square the hinge. A
    mean over no pairs is 0.
    """
    label_B = on_device_of(label_B, emb_BD)
    same_BB = label_B[:, None] == label_B
    far_BB = 2 * config.length**2 * (1 - emb_BD @ emb_BD.T)
    near_BB = ~same_BB & (far_BB < config.margin)
    same_BB = same_BB.fill_diagonal_(False)
    pull = torch.where(same_BB, far_BB, 0.0).sum() / same_BB.sum().clamp(min=1)
    push = torch.where(near_BB, config.margin - far_BB, 0.0).sum() / near_BB.sum().clamp(min=1)
    return (pull + push) / 2


def hyperbolic(config: HyperbolicConfig, emb_BD: Tensor, label_B: Tensor) -> Tensor:
    """Return the cross-entropy of a positive against all negatives, on distances in the Poincare ball.

    Ermolov et al., Hyperbolic Vision Transformers, CVPR 2022, as in PUMA's table. The embedding, a
    direction, becomes a tangent vector of the clipping radius. The mean is over all ordered pairs of one
    class; with two images per class, as in the paper, it is the paper's loss. Without a pair it is 0.
    """
    near_BB = -hyperbolic_distances(config, emb_BD) / config.temperature
    anchor_P, positive_P = (on_device_of(rows_P, emb_BD) for rows_P in positive_pairs(label_B))
    label_B = on_device_of(label_B, emb_BD)
    same_BB = label_B[:, None] == label_B
    others_B = near_BB.masked_fill(same_BB, -torch.inf).logsumexp(1)
    margin_P = near_BB[anchor_P, positive_P] - others_B[anchor_P]
    return -functional.logsigmoid(margin_P).sum() / max(1, len(anchor_P))


def hyperbolic_distances(config: HyperbolicConfig, emb_BD: Tensor) -> Tensor:
    """Return geodesic distances (B, B) between embeddings mapped into the ball.

    d(x, y) = arcosh(1 + 2 c |x - y|^2 / ((1 - c |x|^2) (1 - c |y|^2))) / sqrt(c); the exponential
    map at the origin maps length r to length tanh(sqrt(c) r) / sqrt(c).
    """
    root = math.sqrt(config.curvature)
    # sqrt(c) |x| = tanh, so c |x|^2 / (1 - c |x|^2)^2 = (sinh cosh)^2, and |x - y|^2 = 2 (1 - cos) |x|^2.
    stretch = math.sinh(2 * root * config.radius) ** 2
    rise_BB = (stretch * (1 - emb_BD @ emb_BD.T)).clamp(min=CLOSEST)
    return torch.log1p(rise_BB + (rise_BB * (rise_BB + 2)).sqrt()) / root


# A new loss needs its config, a function here, and a line here
IN_BATCH: dict[type, Callable[[Any, Tensor, Tensor], Tensor]] = {
    BatchAllConfig: batch_all_triplet,
    ContrastiveLossConfig: contrastive,
    HyperbolicConfig: hyperbolic,
}


def positive_pairs(label_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return all ordered pairs of different images of one class: anchors and positives."""
    same_BB = label_B[:, None] == label_B
    anchor_P, positive_P = torch.where(same_BB.fill_diagonal_(False))
    return anchor_P, positive_P
