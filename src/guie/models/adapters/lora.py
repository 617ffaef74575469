"""LoRA: low-rank updates of weight matrices (Hu et al., ICLR 2022, arXiv 2106.09685).

The config selects the matrices: q, k and v (perhaps fused in one matrix), the attention's output, the
MLP. Shapes: B images, N tokens, I inputs, O outputs, R rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.model import LoraConfig
from guie.models.adapters.bottleneck import Gate
from guie.models.backbones.base import Block, VitStructure

QKV = ("q", "k", "v")


class LowRank(nn.Module):
    """The update scale * up(down(x)), added to a weight matrix's output; `up` starts at 0."""

    def __init__(self, inputs: int, outputs: int, config: LoraConfig):
        super().__init__()
        self.down = nn.Linear(inputs, config.rank, bias=False)
        self.up = nn.Linear(config.rank, outputs, bias=False)
        self.scale = (config.alpha or config.rank) / config.rank
        self.gate = Gate(config)
        nn.init.kaiming_uniform_(self.down.weight, a=5**0.5)
        nn.init.zeros_(self.up.weight)

    def forward(self, x_BNI: Tensor) -> Tensor:
        """(B, N, I) -> (B, N, O)."""
        return self.gate(self.up(self.down(x_BNI)) * self.scale)


@dataclass(frozen=True)
class Matrix:
    """A weight matrix that LoRA can update.

    Attributes: `called`, the module whose call applies the matrix; `owner` and `name`, its module and
    parameter name; `places`, which outputs are updated: some of q, k and v (thirds), or `all`.
    """

    called: nn.Module
    owner: nn.Module
    name: str
    places: list[str]

    @property
    def weight_OI(self) -> Tensor:
        return getattr(self.owner, self.name)


class Changed(nn.Module):
    """The updates of one matrix: one for each third of its output (q, k, v), or one for all of it."""

    def __init__(self, matrix: Matrix, config: LoraConfig):
        super().__init__()
        outputs, inputs = matrix.weight_OI.shape
        outputs //= 1 if matrix.places == ["all"] else len(QKV)
        self.matrix = matrix
        self.thirds = nn.ModuleDict(
            {place: LowRank(inputs, outputs, config) for place in matrix.places}
        )
        self.hold = matrix.called.register_forward_hook(self._add)

    def _add(self, module: nn.Module, args: tuple[Tensor, ...], made_BNO: Tensor) -> Tensor:
        x_BNI = args[0]
        if "all" in self.thirds:
            return made_BNO + self.thirds["all"](x_BNI)
        parts = []
        for name, part in zip(QKV, made_BNO.chunk(3, dim=-1), strict=True):
            parts.append(part + self.thirds[name](x_BNI) if name in self.thirds else part)
        return torch.cat(parts, dim=-1)

    @torch.no_grad()
    def merge(self) -> None:
        """Merge the update into a new matrix and remove the hook. Other models may share the old matrix."""
        matrix = self.matrix
        weight_OI = matrix.weight_OI.clone()
        whole = "all" in self.thirds
        parts = {"all": weight_OI} if whole else dict(zip(QKV, weight_OI.chunk(3), strict=True))
        for place, change in self.thirds.items():
            assert isinstance(change, LowRank)
            scale = change.scale * change.gate.expected
            parts[place] += scale * (change.up.weight @ change.down.weight)
        trains = matrix.weight_OI.requires_grad
        setattr(matrix.owner, matrix.name, nn.Parameter(weight_OI, requires_grad=trains))
        self.hold.remove()


class InProjection(nn.Module):
    """The q, k, v projection of a `nn.MultiheadAttention` as a module, so that a hook can attach."""

    def forward(self, x_BND: Tensor, weight_OD: Tensor, bias_O: Tensor | None) -> Tensor:
        return functional.linear(x_BND, weight_OD, bias_O)


class OpenAttention(nn.MultiheadAttention):
    """torch's self-attention built from modules that hooks can attach to; names and weights stay."""

    in_projection: InProjection

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, **other: Any
    ) -> tuple[Tensor, None]:
        """(B, N, D) -> (B, N, D) and no weights; key and value are the query."""
        made_BNO = self.in_projection(query, self.in_proj_weight, self.in_proj_bias)
        heads = (self.num_heads, self.head_dim)
        q, k, v = (part.unflatten(-1, heads).transpose(1, 2) for part in made_BNO.chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=other.get("attn_mask"), dropout_p=dropout
        )
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


def lora(structure: VitStructure, config: LoraConfig, key: str) -> nn.ModuleDict:
    """Add updates to the selected matrices of each chosen block. Raises UserError."""
    changes = nn.ModuleDict()
    for number, block in structure.chosen(config.blocks, key):
        for name, matrix in _matrices(block, config.targets, f"{key}.targets"):
            changes[f"{number}_{name}"] = Changed(matrix, config)
    return changes


def close(attention: nn.Module) -> None:
    """Restore torch's own forward pass of attention, once no hook needs its modules."""
    if isinstance(attention, OpenAttention):
        del attention.in_projection
        attention.__class__ = nn.MultiheadAttention  # type: ignore[assignment]


def _matrices(block: Block, places: Sequence[str], key: str) -> Iterator[tuple[str, Matrix]]:
    """Yield name and matrix of each selected place."""
    attention: Any = block.attention.module
    thirds = [place for place in QKV if place in places]
    of_torch = isinstance(attention, nn.MultiheadAttention)
    if of_torch and not isinstance(attention, OpenAttention):  # the module and its weights stay
        attention.__class__, attention.in_projection = OpenAttention, InProjection()
    if thirds and of_torch:
        yield "qkv", Matrix(attention.in_projection, attention, "in_proj_weight", thirds)
    elif thirds:
        yield from _of_qkv(attention, thirds, key)
    if "out" in places:
        out = getattr(attention, "out_proj" if of_torch else "proj", None)
        if not isinstance(out, nn.Linear):
            raise _unreachable(key, ["out"], attention)
        yield "out", _whole(out)
    if "mlp" in places:
        for name, module in block.mlp.module.named_modules():
            if isinstance(module, nn.Linear):
                yield name.replace(".", "_"), _whole(module)


def _of_qkv(attention: Any, thirds: list[str], key: str) -> Iterator[tuple[str, Matrix]]:
    """Yield the q, k, v matrices of timm's attention: one fused matrix, or one each."""
    if getattr(attention, "qkv", None) is not None:
        if getattr(attention, "q_bias", None) is not None:  # then timm does not call the module
            raise _unreachable(key, thirds, attention)
        yield "qkv", Matrix(attention.qkv, attention.qkv, "weight", thirds)
        return
    for place in thirds:
        matrix = getattr(attention, f"{place}_proj", None)
        if matrix is None:
            raise _unreachable(key, thirds, attention)
        yield place, _whole(matrix)


def _whole(linear: nn.Module) -> Matrix:
    return Matrix(linear, linear, "weight", ["all"])


def _unreachable(key: str, places: list[str], attention: nn.Module) -> UserError:
    kind = type(attention).__name__
    return UserError(f"{key}: {kind} does not support LoRA on {', '.join(places)}; remove them")
