"""Gradient caching: a whole batch goes through a network in pieces that fit the memory.

Gao et al., RepL4NLP 2021, arXiv 2101.06983.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_micro_batches(network: Callable[..., Tensor], pieces: int, *rows: Tensor) -> Tensor:
    """Map rows (B, ...) by a network that treats each alone, in micro-batches of nearly equal size.

    The forward pass keeps the outputs only. The backward pass computes each micro-batch again, with the
    same random numbers, and holds the activations of one at a time. That costs one more forward pass.

    By gradient checkpoints, a step has one forward and one backward pass for DDP, FSDP, autocast, gradient
    scalers and SAM. One piece is the network as usual.
    """
    if pieces == 1:
        return network(*rows)
    columns = [one.tensor_split(min(pieces, len(one))) for one in rows]
    return torch.cat(
        [checkpoint(network, *piece, use_reentrant=False) for piece in zip(*columns, strict=True)]
    )
