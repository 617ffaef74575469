"""Compute in bf16 on CPUs that have no instructions for it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch._ops import OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten
PRODUCTS = {
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
    *(aten.convolution.default, aten.convolution_backward.default),
}


class Float32Products(TorchDispatchMode):
    """Compute matrix products and convolutions of bf16 numbers in float32, and round the results to bf16.

    Instructions for bf16 sum in float32, too; results differ from theirs by the order of the sums.
    """

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in PRODUCTS:
            with self:  # without gradients, torch passes on `linear` or `matmul` as one operation
                result = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result
        if not any(isinstance(arg, Tensor) and arg.dtype == torch.bfloat16 for arg in args):
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, Tensor.float, (args, kwargs))
        return tree_map_only(Tensor, Tensor.bfloat16, func(*args, **kwargs))


@contextmanager
def float32_products(accelerator: Accelerator) -> Iterator[None]:
    """Context of `Float32Products`, if the precision is bf16 on a CPU that has no instructions for it.

    With torch's own products a step takes ten times as long there: see tests/bench/slow_bf16.py.
    """
    wanted = accelerator.device.type == "cpu" and accelerator.mixed_precision == "bf16"
    known = torch.backends.mkldnn.is_available()  # not in builds for Apple's processors
    if not wanted or not known or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        yield
        return
    accelerator.print(
        "note: this CPU has no bf16 instructions: products are computed in float32 and rounded to bf16"
    )
    with Float32Products(), sdpa_kernel(SDPBackend.MATH):
        yield
