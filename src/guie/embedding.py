"""Embed many images: batches, several processes, float32 rows in the order given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import Dataset, Subset
from tqdm import tqdm

from guie.data import EvalDataset, eval_loader
from guie.model.preprocess import Preprocess


def embed_files(
    accelerator: Accelerator,
    embedder: nn.Module,
    preprocess: Preprocess,
    files: Sequence[Path],
    **settings: Any,
) -> np.ndarray:
    """Embed image files, as `embed_dataset` has it: (N, D) float32, row n for file n."""
    return embed_dataset(accelerator, embedder, EvalDataset(files, preprocess), **settings)


@torch.inference_mode()
def embed_dataset(
    accelerator: Accelerator,
    embedder: nn.Module,
    dataset: Dataset,
    *,
    batch_size: int = 128,
    workers: int = 2,
    title: str = "embed",
) -> np.ndarray:
    """Embed the samples of a dataset; each process takes an equal block, every one gets all rows.

    A sample is an image, or a tuple of all that the embedder takes.

    Returns (N, D) float32, row n for sample n.
    """
    share = -(-len(dataset) // accelerator.num_processes)
    first = share * accelerator.process_index
    own = Subset(dataset, range(first, min(first + share, len(dataset))))
    loader = eval_loader(own, batch_size, workers)
    hidden = not accelerator.is_local_main_process
    rows = []
    embedder.eval()
    for batch in tqdm(loader, desc=title, unit="batch", leave=False, disable=hidden):
        taken = [batch] if torch.is_tensor(batch) else batch
        with accelerator.autocast():
            emb_BD = embedder(*(part.to(accelerator.device, non_blocking=True) for part in taken))
        rows.append(emb_BD.float())
    return _gather(accelerator, rows, share, embedder.dim)[: len(dataset)]


def _gather(accelerator: Accelerator, rows: list[torch.Tensor], share: int, dim: int) -> np.ndarray:
    """Blocks of all processes, one after another; the last ones may be short or empty."""
    block = torch.zeros(share, dim, device=accelerator.device)
    if rows:
        own = torch.cat(rows)
        block[: len(own)] = own
    return accelerator.gather(block).cpu().numpy()
