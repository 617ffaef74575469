"""The head as plain tensors, and the lines of Python that apply them to the tower's features.

Shapes: B images, F features, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from guie.model import Embedder
from guie.model.head import Head, L2Norm

Map = tuple[Tensor, Tensor | None]  # weight (D, F) and bias (D)


@dataclass
class HeadRecipe:
    """What makes embeddings of features.

    Attributes: `tensors`, by the name that the lines call them by; `lines`, which take the features
    `x` (B, F) and the tensors `head`, and leave the embeddings (B, D) in `x`.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def linear(self, name: str, weight: Tensor, bias: Tensor | None) -> str:
        """The call that applies an affine map to `x`, whose tensors are kept by this name."""
        self.tensors[f"{name}weight"] = weight.detach().clone()
        if bias is None:
            return f'F.linear({{}}, head["{name}weight"])'
        self.tensors[f"{name}bias"] = bias.detach().clone()
        return f'F.linear({{}}, head["{name}weight"], head["{name}bias"])'


def head_recipe(embedder: Embedder) -> HeadRecipe:
    """The head of a trained model; BatchNorm is folded into the Linear after it."""
    recipe, head = HeadRecipe(), embedder.head
    if head:
        _head_lines(recipe, head)
    if head and head.parts > 1:
        recipe.lines.append(
            f"x = F.normalize(x.unflatten(1, ({head.parts}, -1)), dim=2).flatten(1)"
        )
    recipe.lines.append("x = F.normalize(x, dim=1)")
    if embedder.reduction:
        weight_DR, mean_D = embedder.reduction.weight_DR, embedder.reduction.mean_D
        call = recipe.linear("reduction.", weight_DR.T, -mean_D @ weight_DR)
        recipe.lines.append(f"x = F.normalize({call.format('x')}, dim=1)")
    return recipe


def _head_lines(recipe: HeadRecipe, head: Head) -> None:
    linears = [module for module in [*head.hidden, head.linear] if isinstance(module, nn.Linear)]
    maps: list[Map] = [(linear.weight, linear.bias) for linear in linears]
    given = "x"
    if head.image_shape:
        recipe.lines.append(
            "x = torch.cat([x, torch.tensor([[height / width, height / 224, width / 224]])], 1)"
        )
    if isinstance(head.norm, L2Norm):
        given = "F.normalize(x, dim=1)"
    elif not isinstance(head.norm, nn.Identity):
        maps[0] = _folded(head.norm, *maps[0])
    for number, (weight, bias) in enumerate(maps):
        last = number == len(maps) - 1
        call = recipe.linear("" if last else f"hidden.{number}.", weight, bias).format(given)
        recipe.lines.append(f"x = {call}" if last else f"x = F.relu({call})")
        given = "x"


def _folded(norm: nn.Module, weight_DF: Tensor, bias_D: Tensor | None) -> Map:
    """BatchNorm in eval mode and the Linear after it, as one Linear."""
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None and norm.running_var is not None
    scale_F = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale_F = scale_F * norm.weight
    shift_F = -norm.running_mean * scale_F
    if norm.bias is not None:
        shift_F = shift_F + norm.bias
    bias = weight_DF @ shift_F
    return weight_DF * scale_F, bias if bias_D is None else bias + bias_D
