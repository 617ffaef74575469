"""Locate the parts of timm's and open_clip's vision transformers that adapters and prompts attach to.

Shapes: B images, N tokens, D features, P patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import open_clip
from timm.models.eva import Eva, EvaBlock
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer as TimmTransformer
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.models.patches import Tower, trunk_of


@dataclass(frozen=True)
class Branch:
    """A residual branch of a block, z + after(... norm(z)).

    Attributes: `norm`, whose output is the branch's input; `after`, the last module before the sum.
    """

    norm: nn.Module
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
    patches; `pooling`, how tokens become features: `token` (class token), `avg` or `map` (attention).
    """

    width: int
    blocks: Sequence[Block]
    patches: nn.Module
    entry: nn.Module
    prefix: int
    pooling: str
    tower: Tower

    def chosen(self, blocks: str | Sequence[int], key: str) -> list[tuple[int, Block]]:
        """Return number and block of those named, or of all. Raises UserError for an unknown number."""
        numbers = range(len(self.blocks)) if isinstance(blocks, str) else blocks
        beyond = [number for number in numbers if number >= len(self.blocks)]
        if beyond:
            last = len(self.blocks) - 1
            raise UserError(f"{key}.blocks: {min(beyond)}: the backbone has blocks 0 to {last}")
        return [(number, self.blocks[number]) for number in sorted(set(numbers))]

    def class_position_D(self) -> Tensor | None:
        """Return the class token's position embedding; None if it has none."""
        trunk = trunk_of(self.tower)
        if self.is_open_clip:
            return trunk.positional_embedding[0]
        embedding = trunk.pos_embed
        no_class = trunk.cls_token is None or getattr(trunk, "no_embed_class", False)
        return None if embedding is None or no_class else embedding[0, 0]

    @property
    def takes_tokens(self) -> bool:
        """Whether tokens can be inserted: positions are added before the blocks, tensors are batch-first."""
        trunk = trunk_of(self.tower)
        return trunk.transformer.batch_first if self.is_open_clip else not isinstance(trunk, Eva)

    @property
    def is_open_clip(self) -> bool:
        """Whether it is open_clip's own transformer, wrapped or not."""
        return isinstance(trunk_of(self.tower), open_clip.transformer.VisionTransformer)


def anatomy_of(tower: Tower, key: str) -> VitStructure:
    """Return the structure of a backbone. Raises UserError, naming the config key, if it is not supported."""
    trunk = trunk_of(tower)
    found = None
    if isinstance(trunk, open_clip.transformer.VisionTransformer):
        found = _of_open_clip(tower, trunk)
    elif isinstance(trunk, TimmTransformer | Eva):
        found = _of_timm(tower, trunk)
    if found is None:
        raise UserError(
            f"{key}: {type(trunk).__name__} is not supported; use timm's VisionTransformer or Eva, or"
            " open_clip's VisionTransformer, all pre-norm"
        )
    return found


def _of_open_clip(tower: Tower, trunk: Any) -> VitStructure | None:
    blocks = []
    for module in trunk.transformer.resblocks:
        kinds = open_clip.transformer
        known = kinds.ResidualAttentionBlock | kinds.CustomResidualAttentionBlock
        if not isinstance(module, known) or hasattr(module, "ln_1_kv"):
            return None
        attention, mlp = Branch(module.ln_1, module.ls_1), Branch(module.ln_2, module.ls_2)
        blocks.append(Block(module, attention, mlp))
    pooling = "map" if trunk.attn_pool is not None else {"tok": "token"}.get(trunk.pool_type, "avg")
    width = trunk.class_embedding.shape[0]
    return VitStructure(width, blocks, trunk.conv1, trunk.ln_pre, 1, pooling, tower)


def _of_timm(tower: Tower, trunk: Any) -> VitStructure | None:
    blocks = []
    for module in trunk.blocks:
        if type(module) not in (TimmBlock, EvaBlock):
            return None
        attention = Branch(module.norm1, module.drop_path1)
        blocks.append(Block(module, attention, Branch(module.norm2, module.drop_path2)))
    pooling = trunk.global_pool if trunk.global_pool in ("token", "map") else "avg"
    patches, entry, prefix = trunk.patch_embed, trunk.norm_pre, trunk.num_prefix_tokens
    return VitStructure(trunk.embed_dim, blocks, patches, entry, prefix, pooling, tower)
