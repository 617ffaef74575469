"""Plain softmax: cross-entropy of a Linear layer's logits. Shapes: B images, D dimensions, C classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.losses import LinearSoftmaxConfig
from guie.losses.base import Criterion, Found, at_least_fp32, on_device_of
from guie.losses.margin_softmax import drawn


class LinearSoftmax(Criterion):
    """Mean cross-entropy of the logits W x, without bias, as of Vo and Hays' nams.py:508-518.

    With weights `identity` the logits are x itself: W is the fixed identity of DREML's _code/Loss.py:7-22.

    Args:
        config: whether x is the raw or the unit-length embedding, and what W is.
        classes: C.
        dim: D.

    Raises UserError if the embedding is to be the logits, and has not one number per class.
    """

    def __init__(self, config: LinearSoftmaxConfig, classes: int, dim: int):
        super().__init__()
        self.raw = config.embedding == "raw"
        self.register_parameter("weight_CD", None)
        if config.weights == "linear":
            self.weight_CD = nn.Parameter(drawn(classes, dim, config.init))
        elif dim != classes:
            raise UserError(
                f"task.loss.weights: identity needs one number per class, but the embedding has {dim} for"
                f" {classes} classes; set model.head.dim to {classes}, or weights to linear"
            )

    def forward(self, emb_BD: Tensor, label_B: Tensor, raw_BD: Tensor | None = None) -> Found:
        """Return the mean loss of this process's images, and the accuracy."""
        seen_BD = raw_BD if self.raw else emb_BD
        assert seen_BD is not None  # training gives both
        with torch.autocast(emb_BD.device.type, enabled=False):
            logit_BC = at_least_fp32(seen_BD)
            if self.weight_CD is not None:
                logit_BC = logit_BC @ self.weight_CD.to(logit_BC.dtype).T
            label_B = on_device_of(label_B, emb_BD)
            accuracy = (logit_BC.detach().argmax(1) == label_B).float().mean()
            return functional.cross_entropy(logit_BC, label_B), {"accuracy": accuracy}
