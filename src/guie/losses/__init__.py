"""Losses on embeddings. Each computes in fp32, whatever the model's precision.

Every loss takes unit-length embeddings (B, D) and class ids (B,), and returns (loss, logs).
"""

from guie.losses.base import Criterion, LossStage
from guie.losses.build import build_loss
from guie.losses.in_batch import BatchAllTriplet, Hyperbolic
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.nested import NestedLoss
from guie.losses.random_groups import MetaclassLoss
from guie.losses.rules import ArcFace, CosFace, CurricularFace

__all__ = [
    "ArcFace",
    "BatchAllTriplet",
    "CosFace",
    "Criterion",
    "CurricularFace",
    "Hyperbolic",
    "LossStage",
    "MarginSoftmax",
    "MetaclassLoss",
    "NestedLoss",
    "build_loss",
]
