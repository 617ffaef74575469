"""The parts of a vision transformer that adapters and prompts attach to.

Shapes: B images, N tokens, D features, P patches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from guie.base.errors import UserError


@dataclass(frozen=True)
class Branch:
    """A residual branch of a block, z + after(... norm(z)).

    Attributes: `norm`, whose output is the branch's input; `module`, the attention or MLP itself;
    `after`, the last module before the sum.
    """

    norm: nn.Module
    module: nn.Module
    after: nn.Module


@dataclass(frozen=True)
class Block:
    """One block: attention, then MLP."""

    module: nn.Module
    attention: Branch
    mlp: Branch


@dataclass(frozen=True)
class VitStructure:
    """A pre-norm transformer of `width` D.

    Attributes: `patches`, the module that returns patch embeddings, as (B, P, D) or (B, D, rows,
    columns); `entry`, whose output is the first block's input; `prefix`, the number of tokens before the
    patches; `norm`, of the last block's output, Identity if only pooled features are normalised;
    `pooling`, how tokens become features: `token` (class token), `avg` or `map` (attention);
    `takes_tokens`, whether tokens can be inserted: positions are added before the blocks, and tensors
    are batch-first; `class_position_D` returns the class token's position embedding, None if it has none.
    """

    width: int
    blocks: Sequence[Block]
    patches: nn.Module
    entry: nn.Module
    prefix: int
    norm: nn.Module
    pooling: str
    takes_tokens: bool
    class_position_D: Callable[[], Tensor | None]

    def chosen(self, blocks: str | Sequence[int], key: str) -> list[tuple[int, Block]]:
        """Return number and block of those named, or of all. Raises UserError for an unknown number."""
        numbers = range(len(self.blocks)) if isinstance(blocks, str) else blocks
        beyond = [number for number in numbers if number >= len(self.blocks)]
        if beyond:
            last = len(self.blocks) - 1
            raise UserError(f"{key}.blocks: {min(beyond)}: the backbone has blocks 0 to {last}")
        return [(number, self.blocks[number]) for number in sorted(set(numbers))]
