"""The head: norm -> dropout -> hidden layers, if any -> Linear.

Shapes: B images, F features, D dimensions, N branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.config.model import HeadConfig
from guie.model.batch_norm import GlobalBatchNorm1d

SHAPE = 3  # numbers of `guie.model.shapes.image_shape`


class L2Norm(nn.Module):
    """Unit length, computed in fp32."""

    def forward(self, feat_BF: Tensor) -> Tensor:
        return functional.normalize(feat_BF.float(), dim=-1)


class SharedLinear(nn.Linear):
    """N dropouts before one Linear, averaged (multi-sample dropout, Inoue 2019, arXiv 1905.09788).

    The mean goes first, which is the same for a linear map: one product in place of N.
    """

    def __init__(self, features: int, dim: int, bias: bool, dropouts: Sequence[float]):
        super().__init__(features, dim, bias)
        self.dropouts = tuple(dropouts)

    def forward(self, feat_BF: Tensor) -> Tensor:
        """(B, F) -> (B, D)."""
        if self.training:
            feat_BF = _mean([functional.dropout(feat_BF, p) for p in self.dropouts])
        return super().forward(feat_BF)

    def folded(self) -> nn.Linear:
        """The same map without dropout."""
        return _linear(self.weight, self.bias)


class SeparateLinears(nn.Linear):
    """N Linears, each before a dropout of its own, averaged (the challenge's 3rd place).

    Side by side in one weight (N D, F), so that they are one product; in eval mode, one Linear.
    """

    def __init__(self, features: int, dim: int, bias: bool, dropouts: Sequence[float]):
        super().__init__(features, dim * len(dropouts), bias)
        self.dropouts = tuple(dropouts)

    def forward(self, feat_BF: Tensor) -> Tensor:
        """(B, F) -> (B, D)."""
        if not self.training:
            return functional.linear(feat_BF, *self._averaged())
        parts = super().forward(feat_BF).chunk(len(self.dropouts), dim=-1)
        pairs = zip(parts, self.dropouts, strict=True)
        return _mean([functional.dropout(part_BD, p) for part_BD, p in pairs])

    def folded(self) -> nn.Linear:
        """The mean of the Linears, which is what they are without dropout."""
        return _linear(*self._averaged())

    def _averaged(self) -> tuple[Tensor, Tensor | None]:
        count = len(self.dropouts)
        weight_DF = self.weight.unflatten(0, (count, -1)).mean(dim=0)
        return weight_DF, None if self.bias is None else self.bias.view(count, -1).mean(dim=0)


class Head(nn.Module):
    """Projects backbone features to the embedding's dimension (UnED 4.1: L2 first).

    Attributes: `dim` (D); `parts`, of the embedding, each to be made of unit length; `image_shape`,
    whether the shapes of the images are to be given too.
    """

    def __init__(self, config: HeadConfig, features: int):
        super().__init__()
        self.dim, self.parts, self.image_shape = config.dim, config.parts, config.image_shape
        inputs = features + (SHAPE if config.image_shape else 0)
        norms: dict[str, Callable[[], nn.Module]] = {
            "l2": L2Norm,
            "bn": lambda: GlobalBatchNorm1d(inputs, config.norm_eps),
            "bn_plain": lambda: GlobalBatchNorm1d(inputs, config.norm_eps, affine=False),
            "none": nn.Identity,
        }
        self.norm = norms[config.norm]()
        self.dropout = nn.Dropout(config.dropout)
        self.hidden = nn.Sequential()
        for width in config.hidden:
            self.hidden.append(nn.Linear(inputs, width))
            self.hidden.append(nn.ReLU())
            inputs = width
        if config.branches is None:
            self.linear = nn.Linear(inputs, config.dim, config.bias)
        else:
            kinds = {"shared": SharedLinear, "separate": SeparateLinears}
            kind, dropouts = kinds[config.branches.linear], config.branches.dropouts
            self.linear = kind(inputs, config.dim, config.bias, dropouts)
        if config.norm == "l2" and config.bias and not config.hidden:
            # PyTorch's own start is as long as the signal of features of length 1: embeddings of
            # unrelated images would begin at a cosine of .5. UnED's bias starts at 0.
            nn.init.zeros_(self.linear.bias)

    def forward(self, feat_BF: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """Features, and where the head takes them the images' shapes -> (B, D), not of unit length.

        Raises ValueError where shapes are needed and not given.
        """
        if self.image_shape:
            if shapes_B3 is None:
                raise ValueError("this head takes the shapes of the images too")
            feat_BF = torch.cat([feat_BF.float(), shapes_B3], dim=-1)
        return self.linear(self.hidden(self.dropout(self.norm(feat_BF))))

    def fold(self) -> None:
        """Leave one plain Linear in place of branches: the head as it is scored."""
        if isinstance(self.linear, SharedLinear | SeparateLinears):
            self.linear = self.linear.folded()


def _mean(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).mean(dim=0)


def _linear(weight_DF: Tensor, bias_D: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight_DF.shape[1], weight_DF.shape[0], bias_D is not None, device="meta")
    linear.weight = nn.Parameter(weight_DF.detach())
    if bias_D is not None:
        linear.bias = nn.Parameter(bias_D.detach())
    return linear
