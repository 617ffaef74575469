"""Embed many images in batches and over several processes; float32 rows keep the input order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm

from guie.base.errors import UserError
from guie.data.dataset import EvalDataset, Samples
from guie.data.loader import Prefetcher, eval_loader
from guie.data.raw_batch import RawImages, packed
from guie.models.preprocess import Preprocess
from guie.models.views import AnyPreprocess, Inputs

BLOCK = 4096  # images per process whose rows leave the device, and are gathered, at once
# Devices that resize and normalise images themselves. A CPU would take as long as its loaders.
PREPROCESSING = ("cuda",)
PIECE = 16  # decoded images that a loader sends at once: they are larger than network inputs

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
    workers: int | None = None,
    title: str = "embed",
    check: Check = raise_fault,
) -> Iterator[np.ndarray]:
    """Embed the samples of a data set one block at a time, with prefetching.

    The whole embedder moves to the accelerator's device and into eval mode. A sample is an image, or
    a tuple of all inputs of the embedder. Each process embeds an equal part of a block, and every
    process receives all rows. On a GPU, loaders only decode the images of an `EvalDataset`.

    Args:
        workers: loader processes per process; None for `guie.base.processes.loader_count`.

    Yields (BLOCK x processes, D) float32, the last block shorter, rows in the order of the samples. Raises
    UserError for a sample that cannot be loaded, and whatever `check` raises.
    """
    positions = range(len(dataset))
    size = BLOCK * accelerator.num_processes
    blocks = [positions[start : start + size] for start in positions[::size]]
    plan = [_own_batches(accelerator, block, batch_size) for block in blocks]
    batches = [batch for own in plan for batch in own if batch]
    loaded = Prefetcher(_inputs(accelerator.device, dataset, batches, workers))
    hidden = not accelerator.is_local_main_process
    with torch.inference_mode(False):  # weights moved in inference mode could never train again
        embedder.to(accelerator.device)
    embedder.eval()
    with tqdm(
        total=sum(map(len, plan)), desc=title, unit="batch", leave=False, disable=hidden
    ) as bar:
        for block, own in zip(blocks, plan, strict=True):
            rows = []
            for batch in own:
                check(loaded.fault)
                if batch:
                    rows.append(_embed(accelerator, embedder, next(loaded)))
                bar.update()
            own_SD = torch.cat(rows) if rows else torch.zeros(0, embedder.dim)
            yield _gather(accelerator, own_SD, len(block))


def _own_batches(accelerator: Accelerator, block: range, batch_size: int) -> list[range]:
    """Return this process's batches of a block; the last may be empty, so that all have equally many."""
    share = -(-len(block) // accelerator.num_processes)
    own = block[share * accelerator.process_index :][:share]
    return [own[start : start + batch_size] for start in range(0, share, batch_size)]


def _inputs(
    device: torch.device, dataset: Samples, batches: Sequence[range], workers: int | None
) -> Iterator[Any]:
    """Yield the batches of a data set, in order; on a GPU, its images are preprocessed there."""
    made_by = getattr(dataset, "preprocess", None)
    if (
        device.type not in PREPROCESSING
        or not isinstance(dataset, EvalDataset)
        or not isinstance(made_by, Preprocess | Inputs)
    ):
        yield from eval_loader(dataset, batches, workers, device)
        return
    preprocess: nn.Module = copy.deepcopy(made_by).to(device)  # loaders need the original
    cut = [[own[start : start + PIECE] for start in range(0, len(own), PIECE)] for own in batches]
    pieces = [piece for own in cut for piece in own]
    # Locking these many bytes in memory costs more than it saves: an H100 embeds 1,145 images/s
    # with page-locked images, and 1,287 without
    loaded = eval_loader(RawImages(dataset), pieces, workers, collate=packed)
    for own in cut:
        made = [next(loaded).to(device).prepared(preprocess) for _ in own]
        yield tuple(torch.cat(column) for column in zip(*made, strict=True))


def _embed(accelerator: Accelerator, embedder: Embeds, batch: Any) -> Tensor:
    taken = [batch] if torch.is_tensor(batch) else batch
    with accelerator.autocast():
        emb_BD = embedder(*(part.to(accelerator.device, non_blocking=True) for part in taken))
    return emb_BD.float()


def _gather(accelerator: Accelerator, own_SD: Tensor, size: int) -> np.ndarray:
    """Gather the rows of all processes in order; the last processes may have few or none."""
    if accelerator.num_processes == 1:
        return own_SD.cpu().numpy()
    share = -(-size // accelerator.num_processes)
    padded_SD = torch.zeros(share, own_SD.shape[1], device=accelerator.device)
    padded_SD[: len(own_SD)] = own_SD
    return accelerator.gather(padded_SD)[:size].cpu().numpy()
