"""The head (norm -> dropout -> hidden layers -> Linear), and linear reductions fitted after training."""

from collections.abc import Callable

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from guie.config.model import BranchesConfig, HeadConfig

SHAPE = 3  # values per image in `guie.data.dataset.image_shapes`


class Reduction(nn.Module):
    """An affine map of the embedding, such as PCA on images of all domains (the challenge's 6th place).

    The embedder normalises the result to unit length again. The challenge ranks by Euclidean distance, which
    orders as the cosine does only between unit vectors. Until its buffers are loaded it keeps the first R
    of D dimensions.
    """

    def __init__(self, dim: int, reduced_dim: int):
        super().__init__()
        self.dim = reduced_dim
        self.mean_D: Tensor
        self.weight_DR: Tensor
        self.register_buffer("mean_D", torch.zeros(dim))
        self.register_buffer("weight_DR", torch.eye(dim, reduced_dim))

    def forward(self, emb_BD: Tensor) -> Tensor:
        """(B, D) -> (B, R), not of unit length."""
        return (emb_BD - self.mean_D) @ self.weight_DR


class SumOverProcesses(torch.autograd.Function):
    """All-reduce with a gradient: the sum of every process's gradient. torch's own is deprecated."""

    @staticmethod
    def forward(ctx: object, own: Tensor) -> Tensor:
        total = own.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return SumOverProcesses.forward(ctx, grad)


class GlobalBatchNorm1d(nn.BatchNorm1d):
    """BatchNorm1d with statistics over the batches of all processes.

    Several processes then train as one would, gradients included (Ioffe and Szegedy 2015, alg. 1, over
    the global batch). In a single process it is torch's own.
    """

    def forward(self, feat_BF: Tensor) -> Tensor:
        """Map features (B, F) to (B, F) float32."""
        feat_BF = feat_BF.float()
        several = distributed.is_initialized() and distributed.get_world_size() > 1
        if not (self.training and several):
            return super().forward(feat_BF)
        # In float64: float32 sums of squares lose the variance of features far from zero.
        wide_BF = feat_BF.double()
        count_F = wide_BF.new_full(wide_BF.shape[1:], len(wide_BF))
        moments_3F = torch.stack([count_F, wide_BF.sum(0), wide_BF.square().sum(0)])
        count_F, sum_F, square_F = SumOverProcesses.apply(moments_3F)
        mean_F = sum_F / count_F
        var_F = square_F / count_F - mean_F.square()
        with torch.no_grad():
            assert self.num_batches_tracked is not None and self.momentum is not None
            assert self.running_mean is not None and self.running_var is not None
            self.num_batches_tracked.add_(1)
            unbiased_F = var_F * (count_F[0] / (count_F[0] - 1))
            self.running_mean.lerp_(mean_F.float(), self.momentum)
            self.running_var.lerp_(unbiased_F.float(), self.momentum)
        normal_BF = (feat_BF - mean_F.float()) * (var_F + self.eps).rsqrt().float()
        return normal_BF * self.weight + self.bias if self.affine else normal_BF


def lecun_normal_(weight_DF: Tensor) -> None:
    """Fill a Linear's weights as Flax starts a Dense: of variance 1 / F, cut off at two deviations."""
    cut = 0.87962566  # deviation of a standard normal that is cut off at -2 and 2
    std = weight_DF.shape[1] ** -0.5 / cut
    nn.init.trunc_normal_(weight_DF, std=std, a=-2 * std, b=2 * std)


class L2Norm(nn.Module):
    """Normalise to unit length, in fp32."""

    def forward(self, feat_BF: Tensor) -> Tensor:
        return functional.normalize(feat_BF.float(), dim=-1)


class Branches(nn.Linear):
    """The mean of N dropout branches; in eval mode, one Linear.

    shared: N dropouts before one Linear (multi-sample dropout, Inoue 2019, arXiv 1905.09788). Their mean
    is taken before it: the same result with one product in place of N.
    separate: N Linears, each followed by its own dropout (the challenge's 3rd place). One weight
    (N D, F) holds all of them.
    """

    def __init__(self, features: int, dim: int, bias: bool, config: BranchesConfig):
        self.dropouts, self.shared = config.dropouts, config.linear == "shared"
        self.linears = 1 if self.shared else len(self.dropouts)
        super().__init__(features, dim * self.linears, bias)

    def forward(self, feat_BF: Tensor) -> Tensor:
        """(B, F) -> (B, D)."""
        if not self.training:
            weight_DF, bias_D = self.averaged()
            return functional.linear(feat_BF, weight_DF, bias_D)
        if self.shared:
            dropped = [functional.dropout(feat_BF, p) for p in self.dropouts]
            return super().forward(torch.stack(dropped).mean(dim=0))
        parts = zip(super().forward(feat_BF).chunk(self.linears, -1), self.dropouts, strict=True)
        return torch.stack([functional.dropout(part_BD, p) for part_BD, p in parts]).mean(dim=0)

    def averaged(self) -> tuple[Tensor, Tensor | None]:
        """Return weight (D, F) and bias (D,) of the Linear that equals it without dropout."""
        if self.shared:
            return self.weight, self.bias
        weight_DF = self.weight.unflatten(0, (self.linears, -1)).mean(dim=0)
        return weight_DF, None if self.bias is None else self.bias.view(self.linears, -1).mean(0)


class Head(nn.Module):
    """Project backbone features to the embedding's dimension (UnED 4.1: L2 first).

    Attributes: `dim` (D); `parts`, how many parts of the embedding are each normalised to unit length;
    `image_shape`, whether `forward` needs the images' shapes.
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
            self.hidden.append(nn.ReLU() if config.activation == "relu" else nn.GELU())
            inputs = width
        if config.branches is None:
            self.linear = nn.Linear(inputs, config.dim, config.bias)
        else:
            self.linear = Branches(inputs, config.dim, config.bias, config.branches)
        for weight_DF in self.linear.weight.data.split(config.dim):
            if config.init == "lecun_normal":
                lecun_normal_(weight_DF)
            elif config.init == "xavier_uniform":
                nn.init.xavier_uniform_(weight_DF)
        after_l2 = config.norm == "l2" and not config.hidden
        if config.bias and (after_l2 or config.init != "torch"):
            # PyTorch's default bias is as long as the output for features of length 1, so embeddings of
            # unrelated images would start at a cosine of 0.5. UnED's bias starts at 0.
            nn.init.zeros_(self.linear.bias)

    def forward(self, feat_BF: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """Map features (B, F), and the images' shapes if needed, to (B, D), not of unit length.

        Raises ValueError if shapes are needed and not given.
        """
        if self.image_shape:
            if shapes_B3 is None:
                raise ValueError("shapes_B3 is None; this head needs the shapes of the images too")
            feat_BF = torch.cat([feat_BF.float(), shapes_B3], dim=-1)
        return self.linear(self.hidden(self.dropout(self.norm(feat_BF))))

    def fold(self) -> None:
        """Replace dropout branches by one plain Linear, as in eval mode."""
        if isinstance(self.linear, Branches):
            weight_DF, bias_D = self.linear.averaged()
            dim, features = weight_DF.shape
            self.linear = nn.Linear(features, dim, bias_D is not None, device="meta")
            self.linear.weight = nn.Parameter(weight_DF.detach())
            if bias_D is not None:
                self.linear.bias = nn.Parameter(bias_D.detach())
