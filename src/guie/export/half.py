"""Weights kept in fp16: half the file, and sums in fp32 as before.

PyTorch 1.11 has no fp16 kernels on a CPU, so a stored matrix is widened where it is used. Vectors stay
in fp32: they are a thousandth of the file, and a BatchNorm's variance may leave fp16's range.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from guie.base.errors import UserError


class Widened(nn.Module):
    """fp16 as it is stored -> fp32 as it is used."""

    def forward(self, stored: Tensor) -> Tensor:
        return stored.float()


def keep_in_half(encoder: nn.Module) -> None:
    """Round every matrix and kernel of an encoder to fp16 and widen it in each forward pass.

    Raises UserError where a weight is beyond fp16's range, 65,504.
    """
    for module_name, module in list(encoder.named_modules()):
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight.ndim < 2 or weight.dtype != torch.float32:
                continue
            stored = weight.detach().half()
            if not stored.isfinite().all():
                raise UserError(
                    f"{module_name}.{name}: a weight of {weight.abs().max():.0f} is beyond fp16's"
                    " 65,504; export it without --half"
                )
            parametrize.register_parametrization(module, name, Widened(), unsafe=True)
            module.parametrizations[name].original.data = stored
