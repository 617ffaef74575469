"""Batch normalisation over the global batch, on any device.

torch's SyncBatchNorm runs on GPUs alone; this one also serves processes on CPUs.
Shapes: B images of this process, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn


class SumOverProcesses(torch.autograd.Function):
    """All-reduce with its gradient: what each process makes of the sum comes back to all."""

    @staticmethod
    def forward(ctx: object, part: Tensor) -> Tensor:
        """A tensor of one shape in every process -> their sum, in every process."""
        total = part.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        """The sum of every process's gradient."""
        return SumOverProcesses.forward(ctx, grad)


class GlobalBatchNorm1d(nn.BatchNorm1d):
    """BatchNorm1d whose statistics are those of all processes' batches together.

    Several processes then train as one does (Ioffe and Szegedy 2015, alg. 1, over the global
    batch), gradients included. In a single process it is torch's own.
    """

    def forward(self, feat_BF: Tensor) -> Tensor:
        """(B, F) -> (B, F) float32."""
        feat_BF = feat_BF.float()
        several = distributed.is_initialized() and distributed.get_world_size() > 1
        if not (self.training and several):
            return super().forward(feat_BF)
        # In float64: the sum of squares loses the variance of features far from zero.
        wide_BF = feat_BF.double()
        count_F = wide_BF.new_full(wide_BF.shape[1:], len(wide_BF))
        moments_3F = torch.stack([count_F, wide_BF.sum(0), wide_BF.square().sum(0)])
        count_F, sum_F, square_F = SumOverProcesses.apply(moments_3F)
        mean_F = sum_F / count_F
        var_F = square_F / count_F - mean_F.square()
        self._remember(mean_F.detach(), var_F.detach(), count_F[0].detach())
        normal_BF = (feat_BF - mean_F.float()) * (var_F + self.eps).rsqrt().float()
        return normal_BF * self.weight + self.bias if self.affine else normal_BF

    @torch.no_grad()
    def _remember(self, mean_F: Tensor, var_F: Tensor, count: Tensor) -> None:
        assert self.num_batches_tracked is not None and self.momentum is not None
        assert self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked.add_(1)
        unbiased_F = var_F * (count / (count - 1))
        self.running_mean.lerp_(mean_F.float(), self.momentum)
        self.running_var.lerp_(unbiased_F.float(), self.momentum)
