"""Learned prompt tokens, inserted between the class token and the patches.

They are inserted before the first block and removed after the last, so pooling never sees them. Shapes:
B images, N tokens, D features, P patches, M prompts of a pool, L tokens of a prompt.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.config.model import PoolConfig, VptConfig
from guie.models.backbones.base import VitStructure


class Prompts(nn.Module):
    """Insert a subclass's `tokens_BLD` into the sequence.

    Attributes: `orthogonality`, the weight in the loss of a subclass's `penalty`.
    """

    orthogonality: float = 0.0

    def __init__(self, structure: VitStructure, length: int):
        super().__init__()
        self.prefix, self.length = structure.prefix, length
        # Not at the first block: gradient checkpointing recomputes it, and would consume the prompt twice.
        structure.entry.register_forward_hook(self._put_in)
        structure.blocks[-1].module.register_forward_hook(self._take_out)

    def tokens_BLD(self, like_BND: Tensor) -> Tensor:
        """Return the prompt of each image."""
        raise NotImplementedError

    def _put_in(self, module: nn.Module, args: Any, z_BND: Tensor) -> Tensor:
        prompt_BLD = self.tokens_BLD(z_BND).to(z_BND.dtype)
        parts = [z_BND[:, : self.prefix], prompt_BLD, z_BND[:, self.prefix :]]
        return torch.cat(parts, dim=1)

    def _take_out(self, module: nn.Module, args: Any, z_BND: Tensor) -> Tensor:
        after = self.prefix + self.length
        return torch.cat([z_BND[:, : self.prefix], z_BND[:, after:]], dim=1)


class Vpt(Prompts):
    """The same prompt for every image (Jia et al., Visual Prompt Tuning, ECCV 2022).

    Shallow: inserted before the first block. Deep: inserted before every block, replacing the previous
    block's output at the prompt tokens. PUMA's single prompt is the shallow one.
    """

    def __init__(self, structure: VitStructure, config: VptConfig):
        super().__init__(structure, config.length)
        self.position_D = structure.class_position_D if config.position == "class" else None
        layers = len(structure.blocks) if config.kind == "deep" else 1
        self.prompt_GLD = nn.Parameter(torch.empty(layers, config.length, structure.width))
        patches: Any = structure.patches
        convolution = patches if isinstance(patches, nn.Conv2d) else patches.proj
        inputs = convolution.in_channels * math.prod(convolution.kernel_size)
        bound = math.sqrt(6 / (inputs + structure.width))  # the paper's Xavier initialisation
        nn.init.uniform_(self.prompt_GLD, -bound, bound)
        for number, block in enumerate(structure.blocks[1:layers], 1):
            block.module.register_forward_pre_hook(partial(self._replace, number))

    def tokens_BLD(self, like_BND: Tensor) -> Tensor:
        position_D = self.position_D() if self.position_D else None
        prompt_LD = self.prompt_GLD[0] if position_D is None else self.prompt_GLD[0] + position_D
        return prompt_LD.expand(len(like_BND), -1, -1)

    def _replace(self, number: int, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace the previous block's prompt by that of a later block."""
        z_BND, *others = args
        prompt_LD = self.prompt_GLD[number].to(z_BND.dtype)
        parts = [z_BND[:, : self.prefix], prompt_LD.expand(len(z_BND), -1, -1)]
        parts.append(z_BND[:, self.prefix + self.length :])
        return torch.cat(parts, dim=1), *others


class Weighing(nn.Module):
    """Cosine of the query, weighted by a prompt's attention, and the prompt's key (equation 8)."""

    def __init__(self, width: int, config: PoolConfig):
        super().__init__()
        self.softmax = config.attention == "softmax"
        self.key_MD = nn.Parameter(torch.empty(config.size, width))
        self.attention_MD = nn.Parameter(torch.empty(config.size, width))
        nn.init.orthogonal_(self.key_MD)
        nn.init.orthogonal_(self.attention_MD)

    def forward(self, query_BD: Tensor) -> Tensor:
        """(B, D) -> cosines (B, M), in float32."""
        attention_MD = self.attention_MD.softmax(dim=-1) if self.softmax else self.attention_MD
        attended_BMD = query_BD.float()[:, None] * attention_MD
        return functional.cosine_similarity(attended_BMD, self.key_MD, dim=-1)


class Pool(Prompts):
    """One prompt per image: P = sum over m of cos(q * A_m, K_m) P_m (PUMA, equations 6 to 9).

    The query q pools the patch embeddings. Prompts get the class token's position embedding, as in the
    released code.

    Attributes: `weighing`, whose output is each image's weights, for inspection.
    """

    def __init__(self, structure: VitStructure, config: PoolConfig):
        super().__init__(structure, config.length)
        self.config, self.orthogonality, self.structure = config, config.orthogonality, structure
        self.weighing = Weighing(structure.width, config)
        self.prompt_MLD = nn.Parameter(torch.empty(config.size, config.length, structure.width))
        if config.init == "equal":
            # PUMA's code draws the first prompt and copies it (models/prompt.py:53-55, 76).
            first_LD = nn.init.orthogonal_(torch.empty(config.length, structure.width))
            self.prompt_MLD.data.copy_(first_LD.expand_as(self.prompt_MLD))
        else:
            nn.init.orthogonal_(self.prompt_MLD.data.view(config.size, -1))
        self.query_BD: Tensor | None = None
        structure.patches.register_forward_hook(self._see)

    def tokens_BLD(self, like_BND: Tensor) -> Tensor:
        query_BD, self.query_BD = self.query_BD, None
        assert query_BD is not None
        prompt_BLD = torch.einsum("bm,mld->bld", self.weighing(query_BD), self.prompt_MLD)
        position_D = self.structure.class_position_D()
        return prompt_BLD if position_D is None else prompt_BLD + position_D

    def penalty(self) -> Tensor:
        """Return the summed mean squared deviation of keys, attentions and prompts from orthogonality.

        As in CODA-Prompt (Smith et al., CVPR 2023) and the released code, on rows without normalisation.
        """
        weighing = self.weighing
        total = self.prompt_MLD.new_zeros(())
        for rows_MX in (weighing.key_MD, weighing.attention_MD, self.prompt_MLD.flatten(1)):
            identity_MM = torch.eye(len(rows_MX), device=rows_MX.device)
            total = total + (rows_MX @ rows_MX.T - identity_MM).square().mean()
        return total

    def _see(self, module: nn.Module, args: Any, patches: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            patches = patches.flatten(2).transpose(1, 2)
        patches_BPD = patches.flatten(1, -2)
        query_BD = patches_BPD.mean(dim=1) + patches_BPD.amax(dim=1)
        self.query_BD = query_BD if self.config.query == "sum" else query_BD.detach() / 2
