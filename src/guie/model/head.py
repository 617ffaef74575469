"""The head: norm -> dropout -> Linear. Shapes: B images, F features, D dimensions."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from guie.config.model import HeadConfig
from guie.model.batch_norm import GlobalBatchNorm1d


class L2Norm(nn.Module):
    """Unit length, computed in fp32."""

    def forward(self, feat_BF: Tensor) -> Tensor:
        return functional.normalize(feat_BF.float(), dim=-1)


class Head(nn.Module):
    """Projects backbone features to the embedding's dimension (UnED 4.1: L2 first)."""

    def __init__(self, config: HeadConfig, features: int):
        super().__init__()
        norms = {"l2": L2Norm, "bn": lambda: GlobalBatchNorm1d(features), "none": nn.Identity}
        self.norm = norms[config.norm]()
        self.dropout = nn.Dropout(config.dropout)
        self.linear = nn.Linear(features, config.dim)

    def forward(self, feat_BF: Tensor) -> Tensor:
        """(B, F) -> (B, D), not yet of unit length."""
        return self.linear(self.dropout(self.norm(feat_BF)))
