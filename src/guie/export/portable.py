"""Tracing that keeps to operators which PyTorch 1.11 has.

Shape suffixes: B batch, N queries, M keys, D features a head; any further leading axes are heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_attention, _gelu, _pad = F.scaled_dot_product_attention, F.gelu, F.pad


@contextmanager
def portable_operators() -> Iterator[None]:
    """Within it, what libraries call by `torch.nn.functional` is made of older operators.

    Attention becomes matmul and softmax (in timm, open_clip and nn.MultiheadAttention alike, whose
    fused fast path is off), gelu's tanh approximation its formula, constant padding the operator
    `constant_pad_nd`. The functions are exchanged for the whole process, and put back at the end
    whatever happened.
    """
    originals = {name: getattr(F, name) for name in _PORTABLE}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    vars(F).update(_PORTABLE)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        vars(F).update(originals)


def follow_input_device(traced: torch.jit.ScriptModule) -> None:
    """Let tensors that the traced code makes lie where its input lies.

    A trace writes down the device it ran on, and the file would fail on another (DINOv3's position
    grid, for one). A module without a tensor among its inputs is left as it is.
    """
    for module in traced.modules():
        try:
            graph: Any = module.graph  # a torch.Graph; the stubs take it for a tensor or module
        except RuntimeError:  # a container, without a forward of its own
            continue
        tensors = [value for value in graph.inputs() if value.type().kind() == "TensorType"]
        for node in graph.findAllNodes("prim::Constant") if tensors else ():
            if node.output().type().kind() == "DeviceObjType":
                device = graph.create("prim::device", tensors[:1], 1)
                device.output().setType(node.output().type())
                device.insertBefore(node)
                node.output().replaceAllUsesWith(device.output())


def _portable_attention(
    query_BND: Tensor,
    key_BMD: Tensor,
    value_BMD: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **other: Any,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, equation 1)."""
    if dropout_p or is_causal or any(other.values()):  # no image encoder's; the check will name it
        return _attention(
            query_BND, key_BMD, value_BMD, attn_mask, dropout_p, is_causal, scale=scale, **other
        )
    if scale is None:
        scale = 1 / math.sqrt(query_BND.size(-1))
    logits_BNM = (query_BND * scale) @ key_BMD.transpose(-2, -1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits_BNM = logits_BNM.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        logits_BNM = logits_BNM + attn_mask
    return logits_BNM.softmax(-1) @ value_BMD


def _portable_gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """The tanh approximation by its formula (Hendrycks and Gimpel 2016, section 2)."""
    if approximate != "tanh":
        return _gelu(input, approximate=approximate)
    cubic = input + 0.044715 * input * input * input
    return 0.5 * input * (1 + torch.tanh(math.sqrt(2 / math.pi) * cubic))


def _portable_pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    if mode != "constant":
        return _pad(input, pad, mode, value)
    return torch.constant_pad_nd(input, [int(p) for p in pad], value or 0.0)


_PORTABLE = {
    "scaled_dot_product_attention": _portable_attention,
    "gelu": _portable_gelu,
    "pad": _portable_pad,
}
