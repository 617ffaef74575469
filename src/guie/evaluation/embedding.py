"""Embed many images in batches and over several processes; float32 rows keep the input order.

`cached_features` computes only what is not cached.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from PIL import Image
from pydantic import BaseModel
from torch import Tensor, nn
from tqdm import tqdm

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.data.dataset import Crop, EvalDataset, Samples, as_batch
from guie.data.image_checks.decoding import absolute
from guie.data.images import DIFFERENCES, OpenImage, open_as_seen
from guie.data.loader import Prefetcher, eval_loader
from guie.data.raw_batch import RawImages, packed
from guie.evaluation.feature_cache import FeatureCache, Features, fill, readable_states
from guie.models.preprocess import AnyPreprocess, Inputs, Preprocess
from guie.models.pretrained import state_hash

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
    open_image: OpenImage = open_as_seen,
    **settings: Any,
) -> np.ndarray:
    """Embed image files by `embed_dataset`: (N, D) float32, row n for file n."""
    dataset = EvalDataset(files, preprocess, open_image=open_image)
    return embed_dataset(accelerator, embedder, dataset, **settings)


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


class Embedding(Embeds, Protocol):
    """An embedder whose embeddings can be cached, identified by its weights."""

    cache_key: str

    def state_dict(self) -> Mapping[str, Tensor]: ...


class Model(Protocol):
    """What computes and identifies features: a `LoadedModel`, or the backbone of a stage."""

    @property
    def embedder(self) -> Embedding: ...

    @property
    def preprocess(self) -> AnyPreprocess: ...

    @property
    def config(self) -> BaseModel: ...


View = Callable[[Image.Image], Image.Image]


class Viewed(nn.Module):
    """Apply a view to the image before the preprocessing."""

    def __init__(self, view: View, preprocess: nn.Module):
        super().__init__()
        self.view, self.preprocess = view, preprocess

    def forward(self, images_1CHW: Tensor) -> Tensor:
        """Map (1, 3, H, W) uint8 to the output of `preprocess`."""
        image = Image.fromarray(images_1CHW[0].permute(1, 2, 0).numpy())
        return self.preprocess(as_batch(np.asarray(self.view(image))))


def cached_features(
    accelerator: Accelerator,
    model: Model,
    paths: Sequence[str],
    root: str | Path,
    folder: str | Path,
    *,
    view: tuple[str, View] | None = None,
    **settings: Any,
) -> Features:
    """Return features of `root / path` for each path, and compute those that are not cached.

    Every process must call it with the same paths and receives all rows. Only the main process
    writes, to a folder that all can read.

    Args:
        view: a function applied to each image before the preprocessing, with its name, which is
            part of the cache key; None for the whole image.
        settings: passed on to `embed_into`.

    Raises:
        UserError: an image cannot be read, or the cache cannot be written.
    """
    model.embedder.to(accelerator.device)
    name, look = view or ("whole", None)
    preprocess = Viewed(look, model.preprocess) if look else model.preprocess
    cache = FeatureCache(folder, recipe(model, accelerator.mixed_precision) | {"view": name})
    files, title = absolute(root, paths), f"features ({name})"
    made_by = (accelerator, model.embedder, preprocess)
    states = embed_into(cache, *made_by, files, title=title, **settings)
    return cache.open(states, model.embedder.dim)


def embed_into(
    cache: FeatureCache,
    accelerator: Accelerator,
    embedder: Embeds,
    preprocess: Callable[[Tensor], Tensor],
    files: Sequence[str],
    boxes: Sequence[Crop | None] | None = None,
    open_image: OpenImage = open_as_seen,
    **settings: Any,
) -> pd.DataFrame:
    """Compute missing features in all processes; return the states that `FeatureCache.open` takes.

    Column `differs` has the `guie.data.images.difference` of those computed.

    Args:
        boxes: the crop of each image, None for the whole image; part of the cache key.
        open_image: how images are decoded; part of the cache key.
        settings: passed on to `embed_blocks`.

    Raises UserError like `cached_features`.
    """
    boxes = boxes or [None] * len(files)
    decoder = open_image.__name__
    states = from_main(accelerator, lambda: readable_states(files, decoder))
    decoders = [f"{decoder} {tuple(box)}" if box else decoder for box in boxes]
    states = states.assign(decoder=pd.Series(decoders, states.index, dtype=str))
    missing = from_main(accelerator, lambda: cache.missing(states))
    wanted, crops = [files[row] for row in missing], [boxes[row] for row in missing]
    dataset = EvalDataset(wanted, preprocess, crops, open_image)
    blocks = embed_blocks(accelerator, embedder, dataset, **settings)
    fill(accelerator, cache, states, missing, blocks)
    differs_M = accelerator.reduce(dataset.differs_N.to(accelerator.device), "sum").cpu().numpy()
    differs_N = np.full(len(states), "", object)
    differs_N[missing] = np.take(np.array(DIFFERENCES, object), differs_M)
    return states.assign(differs=differs_N)


def recipe(model: Model, mixed_precision: str) -> dict[str, Any]:
    """Return all that a feature depends on except the image: model, weights, preprocessing, precision."""
    return {
        "gives": model.embedder.cache_key,  # a headless Embedder and a bare backbone share weights
        "model": model.config.model_dump(mode="json"),
        "weights_sha256": state_hash(model.embedder.state_dict()),
        "preprocess": model.preprocess.recipe(),
        "mixed_precision": mixed_precision,
    }
