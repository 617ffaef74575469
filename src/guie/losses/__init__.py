"""Losses on embeddings. Each computes in fp32, whatever the model's precision.

Every loss takes unit-length embeddings (B, D) and class ids (B,), and returns (loss, logs).
"""

from guie.losses.build import build_loss
from guie.losses.criterion import Criterion
from guie.losses.in_batch import BatchAllTriplet, Hyperbolic
from guie.losses.metaclasses import MetaclassLoss
from guie.losses.pml import PeerLoss
from guie.losses.rules import ArcFace, CosFace, CurricularFace
from guie.losses.softmax import MarginSoftmax

__all__ = [
    "ArcFace",
    "BatchAllTriplet",
    "CosFace",
    "Criterion",
    "CurricularFace",
    "Hyperbolic",
    "MarginSoftmax",
    "MetaclassLoss",
    "PeerLoss",
    "build_loss",
]
