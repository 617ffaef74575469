"""Branches that are on by chance while training. Shapes: B images, N tokens, D features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from guie.config.adapters import GateConfig


class Gate(nn.Module):
    """Multiplies a branch by 0 or 1 while training, and by the expected value when scored.

    PUMA's equation 5 multiplies by Bernoulli(p), so the expected value is p. With `rescale` (dropout's
    way, and the released code's) what is kept is divided by p, and the expected value is 1. The draw
    comes from torch's generator, which the loop seeds by the step: a resumed run draws the same.
    """

    def __init__(self, config: GateConfig):
        super().__init__()
        self.keep, self.draw, self.rescale = config.keep, config.draw, config.rescale

    @property
    def expected(self) -> float:
        """What the branch is multiplied by when scored."""
        return 1.0 if self.rescale else self.keep

    def forward(self, branch_BND: Tensor) -> Tensor:
        """(B, N, D) -> the same, on or off."""
        if self.keep == 1:
            return branch_BND
        if not self.training:
            return branch_BND * self.expected
        images = len(branch_BND) if self.draw == "image" else 1
        on_B11 = torch.rand(images, 1, 1, device=branch_BND.device) < self.keep
        kept = 1 / self.keep if self.rescale else 1.0
        return branch_BND * (on_B11 * kept).to(branch_BND.dtype)
