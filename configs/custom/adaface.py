"""AdaFace, a margin rule of your own: Kim et al., CVPR 2022, arXiv 2204.00964, eq. 12 to 14.

python src/train.py --config configs/demo/train.yaml --set 'task.loss={name: custom_rule, source:
    configs/custom/adaface.py:AdaFace}'

Departs from the paper: embeddings of 64 numbers and scale 30, there 512 and 64. The defaults below are those
of the authors' scripts. Norms begin near 20 there, and near 4.6 here with model.head.norm bn, or 0.2 with l2.
The running mean and deviation, which begin at 20 and 100, take hundreds of steps to adapt. Cosines to other
classes are not clipped to 0.999. Untested against ArcFace.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from guie.config.losses import MarginSchedule
from guie.losses.rules import MarginRule

EDGE = 1e-3  # distance of cosines from 1, and of angles from 0 and pi
NORMS = 1e-3, 100.0  # norms are clipped to this range


class AdaFace(MarginRule):
    """A margin by image quality, for which the norm stands.

    With z the standardised norm times h, within [-1, 1], the cosine becomes cos(theta - m z) - m (1 + z). Of
    images of high quality hard ones count most, of low quality easy ones. Norms have no gradient.

    Args:
        margin: m.
        h: of z; if low norms mean high quality, its authors advise a negative one.
        t_alpha: weight of a batch in the running mean and deviation of norms.
    """

    uses_norms = True
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        margin: float | Tensor | MarginSchedule = 0.4,
        h: float = 0.333,
        t_alpha: float = 0.01,
    ):
        super().__init__(margin)
        self.h, self.t_alpha = h, t_alpha
        self.register_buffer("mean", torch.tensor(20.0))
        self.register_buffer("std", torch.tensor(100.0))

    def observe(self, norm_B: Tensor) -> None:
        if len(norm_B) > 1:  # a single norm has no deviation
            norm_B = norm_B.clamp(*NORMS).to(self.mean.dtype)
            self.mean.lerp_(norm_B.mean(), self.t_alpha)
            self.std.lerp_(norm_B.std(), self.t_alpha)

    def own(self, cos_B: Tensor, label_B: Tensor, norm_B: Tensor) -> Tensor:
        margin_B = self.margin(label_B)
        z_B = (norm_B.detach().clamp(*NORMS) - self.mean) / (self.std + EDGE)
        z_B = (self.h * z_B).clamp(-1, 1)
        theta_B = cos_B.clamp(-1 + EDGE, 1 - EDGE).acos() - margin_B * z_B
        return theta_B.clamp(EDGE, math.pi - EDGE).cos() - margin_B * (1 + z_B)
