"""A bottleneck beside a branch of a block, and branches that are on by chance. Shapes: B images, N tokens,
D features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.config.model import AdaptFormerConfig, GateConfig, StochasticConfig
from guie.models.adapters.vit_structure import Branch, VitStructure


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


class Parallel(nn.Module):
    """up(ReLU(down(norm(z)))), added to the branch that works on the same norm(z).

    PUMA's stochastic adapter (Kim et al., arXiv 2309.08944, equations 4 and 5) without biases;
    AdaptFormer's (Chen et al., NeurIPS 2022) with biases and a scale. `up` starts at 0: nothing is
    added at first, to the bit.
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
        """What is added, (B, N, D)."""
        added_BND = self.up(functional.relu(self.down(normed_BND)))
        return self.gate(added_BND if self.scale == 1 else added_BND * self.scale)

    def attach(self, branch: Branch) -> None:
        """Work beside this branch from now on."""
        branch.norm.register_forward_hook(self._see)
        branch.after.register_forward_hook(self._add)

    # Bound methods, so that a deep copy of the model holds on to its own.
    def _see(self, module: nn.Module, args: Any, normed_BND: Tensor) -> None:
        self.seen = normed_BND

    def _add(self, module: nn.Module, args: Any, branch_BND: Tensor) -> Tensor:
        normed_BND, self.seen = self.seen, None
        assert normed_BND is not None
        return branch_BND + self(normed_BND)


def stochastic(structure: VitStructure, config: StochasticConfig, key: str) -> nn.ModuleDict:
    """One beside attention and one beside the MLP of each block that is chosen. Raises UserError."""
    adapters = nn.ModuleDict()
    for number, block in structure.chosen(config.blocks, key):
        for name, branch in (("attention", block.attention), ("mlp", block.mlp)):
            adapter = Parallel(structure.width, config.dim, False, config.scale, Gate(config))
            adapter.attach(branch)
            adapters[f"{number}_{name}"] = adapter
    return adapters


def adaptformer(structure: VitStructure, config: AdaptFormerConfig, key: str) -> nn.ModuleDict:
    """One beside the MLP of each block that is chosen. Raises UserError."""
    adapters = nn.ModuleDict()
    for number, block in structure.chosen(config.blocks, key):
        always = Gate(GateConfig())
        adapter = Parallel(structure.width, config.dim, True, config.scale, always)
        adapter.attach(block.mlp)
        adapters[f"{number}_mlp"] = adapter
    return adapters
