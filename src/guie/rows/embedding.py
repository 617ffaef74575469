"""Embed many images in batches and over several processes; float32 rows keep the input order.

`stored_features` computes only what is not in a store.
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
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

from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.config.types import Decode
from guie.data.dataset import Crop, EvalDataset, Samples, as_batch
from guie.data.images import DIFFERENCES
from guie.data.loader import Prefetcher, RawImages, eval_loader, packed
from guie.data.preprocess import AnyPreprocess, Inputs, Preprocess
from guie.models.pretrained import state_hash
from guie.rows.filling import (
    Compute,
    ComputeItems,
    Remote,
    T,
    Writer,
    fill,
    missing_parts,
    own_blocks,
)
from guie.rows.states import absolute, readable_states
from guie.rows.store import Rows, Store

LEAST = 16  # blocks of a part, if it has as many batches
BLOCK = 4096  # images at most whose rows leave the device, and are written, at once
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
    files: Sequence[str | Path],
    decode: Decode = "seen",
    **settings: Any,
) -> np.ndarray:
    """Embed image files by `embed_dataset`: (N, D) float32, row n for file n."""
    dataset = EvalDataset(files, preprocess, decode=decode)
    return embed_dataset(accelerator, embedder, dataset, **settings)


def embed_dataset(
    accelerator: Accelerator,
    embedder: Embeds,
    dataset: Samples,
    *,
    batch_size: int = 128,
    title: str = "embed",
    **settings: Any,
) -> np.ndarray:
    """Embed the samples of a data set, by `OnDevices`: (N, D) float32, row n for sample n, everywhere."""
    compute = OnDevices(accelerator, embedder, dataset, batch_size, **settings)
    starts = compute.starts(len(dataset), 1)
    blocks = own_blocks(np.arange(len(dataset)), starts, (0, 1))
    first, processes = compute.process
    rows_ND = np.zeros((len(dataset), embedder.dim), np.float32)
    compute(blocks[first::processes], rows_ND.__setitem__, title)
    if processes == 1:
        return rows_ND
    own_ND = torch.from_numpy(rows_ND).to(accelerator.device)
    return accelerator.reduce(own_ND, "sum").cpu().numpy()  # of zeros elsewhere: the same bits


class OnDevices(Compute):
    """Computes embeddings in all processes of an accelerator, each its own blocks.

    The whole embedder moves to the accelerator's device and into eval mode. On a GPU, loaders only decode the
    images of an `EvalDataset`.

    Args:
        dataset: sample n is that of state n: an image, or a tuple of all inputs of the embedder.
        workers: loader processes per process; None for `guie.base.processes.loader_count`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        embedder: Embeds,
        dataset: Samples,
        batch_size: int = 128,
        *,
        workers: int | None = None,
        check: Check = raise_fault,
    ):
        self.accelerator, self.embedder, self.dataset = accelerator, embedder, dataset
        self.batch_size, self.workers, self.check = batch_size, workers, check
        self.process = accelerator.process_index, accelerator.num_processes

    def starts(self, count: int, parts: int) -> range:
        # Of whole batches; about LEAST a part, so that processes get alike
        batches = min(BLOCK // self.batch_size, -(-count // (self.batch_size * parts * LEAST)))
        return range(0, count, self.batch_size * max(1, batches))

    def agreed(self, make: Callable[[], T]) -> T:
        return from_main(self.accelerator, make)

    def __call__(
        self,
        blocks: Sequence[np.ndarray],
        write: Callable[[np.ndarray, np.ndarray], None],
        title: str,
    ) -> None:
        """Embed the positions of each block and write its rows.

        A fault in one process stops all: they check equally often. Raises UserError for a sample that cannot
        be loaded or a block that cannot be written, and whatever `check` raises.
        """
        device, fault = self.accelerator.device, None
        plan = [
            np.split(own, np.flatnonzero(np.diff(own // self.batch_size)) + 1) for own in blocks
        ]
        batches = [batch for own in plan for batch in own]
        most = self.accelerator.gather(torch.tensor([len(batches)], device=device)).max()
        loaded = Prefetcher(_inputs(device, self.dataset, batches, self.workers))
        hidden = not self.accelerator.is_local_main_process
        self.embedder.to(device)
        self.embedder.eval()
        with tqdm(total=int(most), desc=title, unit="batch", leave=False, disable=hidden) as bar:
            for positions, own in zip(blocks, plan, strict=True):
                rows = []
                for _ in own:
                    self.check(loaded.fault or fault)
                    rows.append(self._embed(next(loaded)))
                    bar.update()
                try:
                    write(positions, torch.cat(rows).cpu().numpy())
                except UserError as error:
                    fault = error
            for _ in range(int(most) - len(batches)):
                self.check(fault)
                bar.update()
        try:
            if isinstance(write, Writer):
                write.wait()
        except UserError as error:
            fault = error
        self.check(fault)

    @torch.inference_mode()
    def _embed(self, batch: Any) -> Tensor:
        inputs, device = [batch] if torch.is_tensor(batch) else batch, self.accelerator.device
        with self.accelerator.autocast():
            return self.embedder(*(one.to(device, non_blocking=True) for one in inputs)).float()


def _inputs(
    device: torch.device, dataset: Samples, batches: Sequence[Any], workers: int | None
) -> Iterator[Any]:
    """Yield the batches of a data set, in order; on a GPU, its images are preprocessed there."""
    made_by = dataset.preprocess if isinstance(dataset, EvalDataset) else None
    if device.type not in PREPROCESSING or not isinstance(made_by, Preprocess | Inputs):
        yield from eval_loader(dataset, batches, workers, device)
        return
    assert isinstance(dataset, EvalDataset)
    preprocess: nn.Module = copy.deepcopy(made_by).to(device)  # loaders need the original
    cut = [[own[start : start + PIECE] for start in range(0, len(own), PIECE)] for own in batches]
    pieces = [piece for own in cut for piece in own]
    # Locking these many bytes in memory costs more than it saves: an H100 embeds 1,145 images/s
    # with page-locked images, and 1,287 without
    loaded = eval_loader(RawImages(dataset), pieces, workers, collate=packed)
    for own in cut:
        made = [next(loaded).to(device).prepared(preprocess) for _ in own]
        yield tuple(torch.cat(column) for column in zip(*made, strict=True))


class Model(Protocol):
    """What computes and identifies features: a `LoadedModel`, or the backbone of a stage."""

    @property
    def embedder(self) -> Any: ...  # `Embeds` with a cache_key and a state_dict

    @property
    def preprocess(self) -> AnyPreprocess: ...

    @property
    def config(self) -> BaseModel: ...


View = Callable[[Image.Image], Image.Image]
# Opens an embedder and its preprocessing in an actor of Ray, with an accelerator.
Opens = Callable[[], tuple[Accelerator, Embeds, Callable[[Tensor], Tensor]]]


class Viewed(nn.Module):
    """Apply a view to the image before the preprocessing."""

    def __init__(self, view: View, preprocess: nn.Module):
        super().__init__()
        self.view, self.preprocess = view, preprocess

    def forward(self, images_1CHW: Tensor) -> Tensor:
        """Map (1, 3, H, W) uint8 to the output of `preprocess`."""
        image = Image.fromarray(images_1CHW[0].permute(1, 2, 0).numpy())
        return self.preprocess(as_batch(np.asarray(self.view(image))))


class FileEmbeddings:
    """Embeddings of image files in a store. Every process must make it and call it alike.

    Args:
        boxes: the crop of each image, None for the whole image; part of the key, like `decode`.
        without: positions of images that cannot be embedded.
        opens: opens the same embedder and preprocessing in an actor of Ray, with an accelerator.
        settings: passed on to `OnDevices`.

    Raises UserError if another image cannot be read.
    """

    def __init__(
        self,
        store: Store,
        accelerator: Accelerator,
        embedder: Embeds,
        preprocess: Callable[[Tensor], Tensor],
        root: str | Path,
        paths: Sequence[str],
        boxes: Sequence[Crop | None] | None = None,
        decode: Decode = "seen",
        *,
        without: Sequence[int] | np.ndarray = (),
        opens: Opens | None = None,
        **settings: Any,
    ):
        name = f"open_as_{decode}"
        variant = [f"{name} {tuple(box)}" if box else name for box in boxes] if boxes else name
        self.store, self.accelerator, self.without = store, accelerator, without
        find = partial(readable_states, root, paths, variant, without)
        self.states = from_main(accelerator, find)
        files = absolute(root, paths)
        self.dataset = EvalDataset(files, preprocess, boxes, decode)
        self._compute = OnDevices(accelerator, embedder, self.dataset, **settings)
        if opens:
            items = [*zip(files, boxes or repeat(None), strict=False)]
            there = partial(_open_on_an_actor, opens, decode, self._compute.batch_size)
            self._compute.remote = Remote(there, items, self.dataset.differs_N.__setitem__)

    def fill(self, title: str = "embed", part: tuple[int, int] = (0, 1)) -> np.ndarray:
        """Compute the missing rows of part n of m, and return their positions. Raises UserError."""
        return fill(
            self.store, self.states, self._compute, part=part, without=self.without, title=title
        )

    def missing_parts(self, parts: int) -> list[int]:
        """Return which of m parts lack rows."""
        return missing_parts(self.store, self.states, self._compute, parts, self.without)

    def rows(self) -> Rows:
        """Return the rows of all images but `without`, in order."""
        good = np.delete(np.arange(len(self.states)), self.without)
        return self.store.open(self.states.take(good), self._compute.embedder.dim)

    def differences(self, computed: np.ndarray) -> pd.Series:
        """Return the `guie.data.images.difference` of images that `fill` has computed, by path."""
        device = self.accelerator.device
        differs_N = self.accelerator.reduce(self.dataset.differs_N.to(device), "sum").cpu().numpy()
        found = [DIFFERENCES[number] for number in differs_N[computed]]
        return pd.Series(found, [self.states.names[row] for row in computed], object)


def _open_on_an_actor(opens: Opens, decode: Decode, batch_size: int) -> ComputeItems:
    """Open a model; return what embeds files and boxes, and returns the differences of the images."""
    accelerator, embedder, preprocess = opens()

    def compute(
        items: Sequence[tuple[str, Crop | None]], missing: np.ndarray, write: Writer
    ) -> Tensor:
        files, boxes = zip(*items, strict=True)
        dataset = EvalDataset(files, preprocess, boxes, decode)
        OnDevices(accelerator, embedder, dataset, batch_size, workers=0)([missing], write, "")
        return dataset.differs_N[missing]

    return compute


def embed(
    model: Model, files: Sequence[str | Path], *, store: str | Path | None = None, **settings: Any
) -> np.ndarray | Rows:
    """Embed image files: (N, D) float32 of unit length, row n for file n. Raises UserError.

    Args:
        model: of `guie.open_model`.
        store: folder that keeps the rows, so that only new and changed files are computed.
        settings: such as `batch_size` and `workers`, the loader processes.
    """
    accelerator, paths = make_accelerator(), [os.path.abspath(file) for file in files]
    if store:
        return stored_features(accelerator, model, paths, "/", store, dtype=np.float32, **settings)
    return embed_files(accelerator, model.embedder, model.preprocess, paths, **settings)


def stored_features(
    accelerator: Accelerator,
    model: Model,
    paths: Sequence[str],
    root: str | Path,
    folder: str | Path,
    *,
    view: tuple[str, View] | None = None,
    part: tuple[int, int] = (0, 1),
    reopen: Callable[[], Model] | None = None,
    dtype: type[np.floating] = np.float16,
    **settings: Any,
) -> Rows:
    """Return features of `root / path` for each path, and compute those of part n of m that are missing.

    Every process must call it with the same paths, and a folder that all can write.

    Args:
        view: a function applied to each image before the preprocessing, and its name.
        reopen: opens the same model in an actor of Ray.
        dtype: of the rows on disk.
        settings: passed on to `FileEmbeddings`.

    Raises UserError if an image cannot be read, or the store cannot be written.
    """
    embedder = model.embedder.to(accelerator.device)
    name, look = view or ("whole", None)
    precision = accelerator.mixed_precision
    store = Store(folder, recipe(model, precision) | {"view": name}, dtype)
    opens = partial(_reopen, precision, reopen, look) if reopen else None
    preprocess = Viewed(look, model.preprocess) if look else model.preprocess
    features = FileEmbeddings(
        store, accelerator, embedder, preprocess, root, paths, opens=opens, **settings
    )
    features.fill(f"features ({name})", part)
    return features.rows()


def _reopen(
    precision: str, reopen: Callable[[], Model], look: View | None
) -> tuple[Accelerator, Embeds, nn.Module]:
    accelerator, model = make_accelerator(mixed_precision=precision), reopen()
    preprocess = Viewed(look, model.preprocess) if look else model.preprocess
    return accelerator, model.embedder, preprocess


def recipe(model: Model, mixed_precision: str) -> dict[str, Any]:
    """Return all that a feature depends on except the image: model, weights, preprocessing, precision."""
    return {
        "gives": model.embedder.cache_key,  # a headless Embedder and a bare backbone share weights
        "model": model.config.model_dump(mode="json"),
        "weights_sha256": state_hash(model.embedder.state_dict()),
        "preprocess": model.preprocess.recipe(),
        "mixed_precision": mixed_precision,
    }
