"""Bottleneck adapters parallel to a block's branch, and stochastic gates for branches.

Shapes: B images, N tokens, D features.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.config.model import AdaptFormerConfig, GateConfig, StochasticConfig
from guie.models.backbones.base import Branch, VitStructure


class Gate(nn.Module):
    """Multiply a branch by 0 or 1 in training, and by the expected value in eval mode.

    PUMA's equation 5 multiplies by Bernoulli(p), so the expected value is p. With `rescale` (as in
    dropout and the released code) kept branches are divided by p, and the expected value is 1. The draw
    uses torch's generator, which the training loop seeds by the step, so a resumed run draws the same.
    """

    def __init__(self, config: GateConfig):
        super().__init__()
        self.keep, self.draw, self.rescale = config.keep, config.draw, config.rescale

    @property
    def expected(self) -> float:
        """The factor of the branch in eval mode."""
        return 1.0 if self.rescale else self.keep

    def forward(self, branch_BND: Tensor) -> Tensor:
        """Return the branch (B, N, D), on or off."""
        if self.keep == 1:
            return branch_BND
        if not self.training:
            return branch_BND * self.expected
        images = len(branch_BND) if self.draw == "image" else 1
        on_B11 = torch.rand(images, 1, 1, device=branch_BND.device) < self.keep
        kept = 1 / self.keep if self.rescale else 1.0
        return branch_BND * (on_B11 * kept).to(branch_BND.dtype)


class Parallel(nn.Module):
    """Add up(ReLU(down(norm(z)))) to the branch that reads the same norm(z).

    Without biases it is PUMA's stochastic adapter (Kim et al., arXiv 2309.08944, equations 4 and 5).
    With biases and a scale it is AdaptFormer's (Chen et al., NeurIPS 2022). `up` starts at 0, so at
    first the output does not change by a bit.
    """

    def __init__(self, width: int, dim: int, bias: bool, scale: float, gate: Gate):
        super().__init__()
        self.down = nn.Linear(width, dim, bias=bias)
        self.up = nn.Linear(dim, width, bias=bias)
        self.scale, self.gate = scale, gate
        nn.init.kaiming_uniform_(self.down.weight, a=5**0.5)
        for zero in (self.up.weight, self.up.bias, self.down.bias):
            if zero is not None:
                nn.init.zeros_(zero)
        self.seen: Tensor | None = None

    def forward(self, normed_BND: Tensor) -> Tensor:
        """Return the term that is added to the branch, (B, N, D)."""
        added_BND = self.up(functional.relu(self.down(normed_BND)))
        return self.gate(added_BND if self.scale == 1 else added_BND * self.scale)

    def attach(self, branch: Branch) -> None:
        """Hook this adapter in parallel to the branch."""
        branch.norm.register_forward_hook(self._see)
        branch.after.register_forward_hook(self._add)

    # Bound methods, so that the hooks of a deep copy refer to the copy's own adapter.
    def _see(self, module: nn.Module, args: Any, normed_BND: Tensor) -> None:
        self.seen = normed_BND

    def _add(self, module: nn.Module, args: Any, branch_BND: Tensor) -> Tensor:
        normed_BND, self.seen = self.seen, None
        assert normed_BND is not None
        return branch_BND + self(normed_BND)


def stochastic(structure: VitStructure, config: StochasticConfig, key: str) -> nn.ModuleDict:
    """Add adapters parallel to attention and MLP of each chosen block. Raises UserError."""
    adapters = nn.ModuleDict()
    for number, block in structure.chosen(config.blocks, key):
        both = []
        for name, branch in (("attention", block.attention), ("mlp", block.mlp)):
            adapter = Parallel(structure.width, config.dim, False, config.scale, Gate(config))
            adapter.attach(branch)
            adapters[f"{number}_{name}"] = adapter
            both.append(adapter.down.weight.data)
        if config.init == "fan_out":
            # As PUMA's code (models/prompt.py:31, 53-55, 225). There the weight is (D, r), so that torch's
            # fan-in is r: the variance is 1 / r, and 3 D / r times that of a Linear.
            both[1].copy_(nn.init.kaiming_uniform_(both[0], a=1, mode="fan_out"))
    return adapters


def adaptformer(structure: VitStructure, config: AdaptFormerConfig, key: str) -> nn.ModuleDict:
    """Add an adapter parallel to the MLP of each chosen block. Raises UserError."""
    adapters = nn.ModuleDict()
    for number, block in structure.chosen(config.blocks, key):
        always = Gate(GateConfig())
        adapter = Parallel(structure.width, config.dim, True, config.scale, always)
        adapter.attach(block.mlp)
        adapters[f"{number}_mlp"] = adapter
    return adapters
