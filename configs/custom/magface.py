"""MagFace, a margin rule of your own: Meng et al., CVPR 2021, arXiv 2103.06627, eq. 3 and 4.

python src/train.py --config configs/demo/train.yaml --set model.head.norm=bn --set 'task.loss={name:
    custom_rule, source: configs/custom/magface.py:MagFace, settings: {l_a: 2, u_a: 22, lambda_g: 3.3}}'

Departs from the paper: embeddings of 64 numbers and scale 30, there 512 and 64. The defaults below are those
of the authors' run.sh. There norms begin near 23; here 4.6 with model.head.norm bn, 0.2 with l2. So the
command divides the bounds by 5, and lambda_g by 5 * 64 / 30. Outside the bounds a norm has no
gradient: see `norm` in metrics.jsonl. Not compared with ArcFace.
"""

from __future__ import annotations

import torch
from torch import Tensor

from guie.losses.rules import MarginRule, add_angular_margin


class MagFace(MarginRule):
    """A margin that grows with the norm a of the embedding, and a reward for large norms.

    The angle gets l_margin at a = l_a, rising linearly to u_margin at u_a; a is clipped to these bounds. The
    loss gets lambda_g times the mean of a / u_a^2 + 1 / a. A stage's `margin` replaces l_margin.

    Args:
        l_a, u_a: bounds of norms.
        l_margin, u_margin: margins there, in radians.
        lambda_g: weight of the reward.
        easy_margin: no margin past 90 degrees; False: the falling line of ArcFace.
    """

    uses_norms = True

    def __init__(
        self,
        l_a: float = 10.0,
        u_a: float = 110.0,
        l_margin: float = 0.45,
        u_margin: float = 0.8,
        lambda_g: float = 35.0,
        easy_margin: bool = True,
    ):
        super().__init__(l_margin)
        self.l_a, self.u_a, self.lambda_g, self.easy_margin = l_a, u_a, lambda_g, easy_margin
        self.slope = (u_margin - l_margin) / (u_a - l_a)

    def own(self, cos_B: Tensor, label_B: Tensor, norm_B: Tensor) -> Tensor:
        norm_B = norm_B.clamp(self.l_a, self.u_a)
        margin_B = self.margin(label_B) + self.slope * (norm_B - self.l_a)
        with_margin_B = add_angular_margin(cos_B, margin_B)
        return torch.where(cos_B > 0, with_margin_B, cos_B) if self.easy_margin else with_margin_B

    def penalty(self, norm_B: Tensor) -> Tensor:
        norm_B = norm_B.clamp(self.l_a, self.u_a)
        return self.lambda_g * (norm_B / self.u_a**2 + 1 / norm_B).mean()
