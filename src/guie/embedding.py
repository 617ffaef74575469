"""Embed many images: batches, several processes, float32 rows in the order given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from tqdm import tqdm

from guie.data import EvalDataset, eval_loader
from guie.model.preprocess import Preprocess


@torch.inference_mode()
def embed_files(
    accelerator: Accelerator,
    embedder: nn.Module,
    preprocess: Preprocess,
    files: Sequence[Path],
    *,
    batch_size: int = 128,
    workers: int = 2,
    title: str = "embed",
) -> np.ndarray:
    """Embed image files; each process takes an equal block, every process gets all rows.

    Returns (N, D) float32, row n for file n.
    """
    share = -(-len(files) // accelerator.num_processes)
    first = share * accelerator.process_index
    own = files[first : first + share]
    loader = eval_loader(EvalDataset(own, preprocess), batch_size, workers)
    hidden = not accelerator.is_local_main_process
    rows = []
    embedder.eval()
    for images_BCHW in tqdm(loader, desc=title, unit="batch", leave=False, disable=hidden):
        with accelerator.autocast():
            emb_BD = embedder(images_BCHW.to(accelerator.device, non_blocking=True))
        rows.append(emb_BD.float())
    return _gather(accelerator, rows, share, embedder.dim)[: len(files)]


def _gather(accelerator: Accelerator, rows: list[torch.Tensor], share: int, dim: int) -> np.ndarray:
    """Blocks of all processes, one after another; the last ones may be short or empty."""
    block = torch.zeros(share, dim, device=accelerator.device)
    if rows:
        own = torch.cat(rows)
        block[: len(own)] = own
    return accelerator.gather(block).cpu().numpy()
