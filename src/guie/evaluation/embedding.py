"""Embed many images in batches and over several processes; float32 rows keep the input order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm import tqdm

from guie.base.errors import UserError
from guie.data.dataset import EvalDataset, Samples
from guie.data.loader import Prefetcher, eval_loader
from guie.models.views import AnyPreprocess

BLOCK = 4096  # images of all processes whose rows are gathered at once; other rows leave the device

# Called before each batch, equally often in every process, with this process's error or None.
Check = Callable[[UserError | None], None]


class Embeds(Protocol):
    """A module that returns embeddings of `dim` numbers."""

    @property
    def dim(self) -> int: ...

    def __call__(self, *taken: Tensor) -> Tensor: ...

    def eval(self) -> Any: ...

    def to(self, device: torch.device) -> Any: ...


def raise_fault(fault: UserError | None) -> None:
    """Raise the error, if any: the check for a single process."""
    if fault:
        raise fault


def embed_files(
    accelerator: Accelerator,
    embedder: Embeds,
    preprocess: AnyPreprocess,
    files: Sequence[Path],
    **settings: Any,
) -> np.ndarray:
    """Embed image files by `embed_dataset`: (N, D) float32, row n for file n."""
    return embed_dataset(accelerator, embedder, EvalDataset(files, preprocess), **settings)


def embed_dataset(
    accelerator: Accelerator, embedder: Embeds, dataset: Samples, **settings: Any
) -> np.ndarray:
    """Concatenate the blocks of `embed_blocks`: (N, D) float32, row n for sample n."""
    blocks = embed_blocks(accelerator, embedder, dataset, **settings)
    return np.concatenate([np.zeros((0, embedder.dim), np.float32), *blocks])


@torch.inference_mode()
def embed_blocks(
    accelerator: Accelerator,
    embedder: Embeds,
    dataset: Samples,
    *,
    batch_size: int = 128,
    workers: int = 2,
    title: str = "embed",
    check: Check = raise_fault,
) -> Iterator[np.ndarray]:
    """Embed the samples of a data set one block at a time, with prefetching.

    The whole embedder moves to the accelerator's device and into eval mode. A sample is an image, or
    a tuple of all inputs of the embedder. Each process embeds an equal part of a block, and every
    process receives all rows.

    Yields (BLOCK, D) float32, the last block shorter, rows in the order of the samples. Raises
    UserError for a sample that cannot be loaded, and whatever `check` raises.
    """
    positions = range(len(dataset))
    blocks = [positions[start : start + BLOCK] for start in positions[::BLOCK]]
    plan = [_own_batches(accelerator, block, batch_size) for block in blocks]
    batches = [batch for own in plan for batch in own if batch]
    loaded = Prefetcher(eval_loader(dataset, batches, workers, accelerator.device))
    hidden = not accelerator.is_local_main_process
    with torch.inference_mode(False):  # weights moved in inference mode could never train again
        embedder.to(accelerator.device)
    embedder.eval()
    with tqdm(
        total=sum(map(len, plan)), desc=title, unit="batch", leave=False, disable=hidden
    ) as bar:
        for block, own in zip(blocks, plan, strict=True):
            rows = [torch.zeros(0, embedder.dim)]
            for batch in own:
                check(loaded.fault)
                if batch:
                    rows.append(_embed(accelerator, embedder, next(loaded)))
                bar.update()
            yield _gather(accelerator, torch.cat(rows), len(block))


def _own_batches(accelerator: Accelerator, block: range, batch_size: int) -> list[range]:
    """Return this process's batches of a block; the last may be empty, so that all have equally many."""
    share = -(-len(block) // accelerator.num_processes)
    own = block[share * accelerator.process_index :][:share]
    return [own[start : start + batch_size] for start in range(0, share, batch_size)]


def _embed(accelerator: Accelerator, embedder: Embeds, batch: Any) -> Tensor:
    taken = [batch] if torch.is_tensor(batch) else batch
    with accelerator.autocast():
        emb_BD = embedder(*(part.to(accelerator.device, non_blocking=True) for part in taken))
    return emb_BD.float().cpu()


def _gather(accelerator: Accelerator, own_SD: Tensor, size: int) -> np.ndarray:
    """Gather the rows of all processes in order; the last processes may have few or none."""
    if accelerator.num_processes == 1:
        return own_SD.numpy()
    share = -(-size // accelerator.num_processes)
    padded_SD = torch.zeros(share, own_SD.shape[1], device=accelerator.device)
    padded_SD[: len(own_SD)] = own_SD
    return accelerator.gather(padded_SD)[:size].cpu().numpy()
