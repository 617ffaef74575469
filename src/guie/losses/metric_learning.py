"""The losses of pytorch-metric-learning, with our units, on the batch of all processes.

Its defaults hold for settings that the configs lack, except the initialisation of proxies. Embeddings
have unit length, so Euclidean distances are at most 2.
"""

from typing import Any

import torch
from pytorch_metric_learning import distances, losses, miners
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.losses import (
    MarginLossConfig,
    MultiSimilarityConfig,
    PairConfig,
    ProxyAnchorConfig,
    ProxyConfig,
    ProxyNcaConfig,
    SoftTripleConfig,
    SupConConfig,
    TripletConfig,
)
from guie.losses.base import on_device_of
from guie.losses.in_batch import InBatchLoss
from guie.losses.margin_softmax import drawn

Built = tuple[nn.Module, nn.Module | None]  # loss and miner


class NearestSemihardMiner(miners.BaseMiner):
    """Mine for each positive pair the nearest negative that is farther than the positive, if any.

    The loss leaves out the triplets beyond its margin.
    """

    def mine(
        self, emb_BD: Tensor, label_B: Tensor, ref_RD: Tensor, ref_label_R: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return anchors, positives and negatives of T triplets, as rows of `emb_BD` and `ref_RD`."""
        anchor_P, positive_P, _, _ = get_all_pairs_indices(label_B, ref_label_R)
        far_BR = self.distance(emb_BD, ref_RD)
        far_PR, same_PR = far_BR[anchor_P], label_B[anchor_P, None] == ref_label_R
        nearer_PR = far_PR <= far_BR[anchor_P, positive_P, None]
        nearest_P, negative_P = far_PR.masked_fill(same_PR | nearer_PR, torch.inf).min(dim=1)
        found_P = nearest_P.isfinite()
        return anchor_P[found_P], positive_P[found_P], negative_P[found_P]


def build(config: PairConfig | ProxyConfig, classes: int, dim: int) -> Built:
    """Return the configured loss and its miner; proxies are drawn as the config says."""
    loss: Any
    match config:
        case TripletConfig():  # Schroff et al., FaceNet, CVPR 2015; here distances are not squared
            # With `batch_hard` and `cosine` at a margin of 0.05 it is PUMA's baseline (losses.py:21-22)
            margin, cosine = config.margin_distance, config.distance == "cosine"
            distance = distances.CosineSimilarity() if cosine else distances.LpDistance()
            loss = losses.TripletMarginLoss(margin, distance=distance)
            if config.miner == "batch_hard":  # unit vectors have one order by either distance
                return loss, miners.BatchHardMiner()
            if config.miner == "semihard_nearest":
                return loss, NearestSemihardMiner(distance=distances.LpDistance())
            return loss, miners.TripletMarginMiner(margin, "semihard", distance=distance)
        case MarginLossConfig():  # Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017
            margin, beta = config.margin_distance, config.boundary_distance
            learned = {"learn_beta": True, "num_classes": classes} if config.learn_boundary else {}
            loss = losses.MarginLoss(margin, beta=beta, **learned)
            if config.miner == "multi_similarity":  # as in PUMA's losses.py:47-48
                return loss, miners.MultiSimilarityMiner()
            # Negatives beyond boundary + margin have no gradient, so they are not drawn
            return loss, miners.DistanceWeightedMiner(nonzero_loss_cutoff=beta + margin)
        case MultiSimilarityConfig():  # Wang et al., Multi-Similarity Loss, CVPR 2019
            loss = losses.MultiSimilarityLoss(
                config.positive_scale, config.negative_scale, config.base_cos
            )
            if config.miner == "distance_weighted":  # as in PUMA's losses.py:34-35
                return loss, miners.DistanceWeightedMiner()
            return loss, miners.MultiSimilarityMiner(config.mining_margin_cos)
        case SupConConfig():  # Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, eq. 2
            return losses.SupConLoss(config.temperature), None
        case ProxyAnchorConfig():  # Kim et al., Proxy Anchor Loss, CVPR 2020, eq. 4
            loss = losses.ProxyAnchorLoss(classes, dim, config.margin_cos, config.scale)
            loss.proxies.data = drawn(classes, dim, config.init)
        case ProxyNcaConfig():  # Teh et al., ProxyNCA++, ECCV 2020: over all proxies, with a temperature
            loss = losses.ProxyNCALoss(classes, dim, softmax_scale=1 / config.temperature)
            loss.proxies.data = drawn(classes, dim, config.init)
        case SoftTripleConfig():  # Qian et al., SoftTriple Loss, ICCV 2019
            loss = losses.SoftTripleLoss(
                classes,
                dim,
                centers_per_class=config.centers,
                la=config.scale,
                gamma=config.center_temperature,
                margin=config.margin_cos,
            )
            loss.fc.data = drawn(classes * config.centers, dim, config.init).T.contiguous()
    return loss, None


class MetricLearningLoss(InBatchLoss):
    """A loss of pytorch-metric-learning, with its proxies, its miner and its memory.

    The memory (Wang et al., Cross-Batch Memory, CVPR 2020) holds the newest embeddings of all
    processes, without gradients, and is part of the state.
    """

    def __init__(self, config: PairConfig | ProxyConfig, classes: int, dim: int):
        super().__init__()
        self.loss, self.miner = build(config, classes, dim)
        self.memory = getattr(config, "memory", 0)
        if self.memory:
            self.loss = losses.CrossBatchMemory(self.loss, dim, self.memory, self.miner)

    def of_batch(self, emb_BD: Tensor, label_B: Tensor) -> Tensor:
        """Return the loss of one global batch. Raises UserError if the memory is smaller.

        The library's losses and miners wait for the device: they list the pairs of a batch there.
        """
        label_B = on_device_of(label_B, emb_BD)
        if self.memory and len(emb_BD) > self.memory:
            raise UserError(
                f"loss.memory {self.memory} is smaller than a batch of {len(emb_BD)} images;"
                " raise it, or set it to 0 for no memory"
            )
        # The memory mines by itself
        mined = self.miner(emb_BD, label_B) if self.miner and not self.memory else None
        loss = self.loss(emb_BD, label_B, mined)
        # A batch may not use all learned boundaries, but DDP waits for every gradient.
        unused = [p for p in self.parameters() if p.ndim == 1]
        return loss + sum(0.0 * p.sum() for p in unused)

    def get_extra_state(self) -> dict[str, int | bool]:
        """Return the position in the memory's ring, which pytorch-metric-learning keeps in no buffer."""
        if not self.memory:
            return {}
        ring: Any = self.loss  # a CrossBatchMemory, typed as Module
        return {"next": ring.queue_idx, "full": ring.has_been_filled}

    def set_extra_state(self, state: dict[str, int | bool]) -> None:
        if self.memory:
            ring: Any = self.loss
            ring.queue_idx, ring.has_been_filled = state["next"], state["full"]
