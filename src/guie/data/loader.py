"""Load batches, optionally with generic images, in worker processes that end with this one.

An error in a worker ends the run with one line.
"""

from __future__ import annotations

import copy
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from guie.base.errors import UserError
from guie.base.processes import children_block_sigterm, context, follow_parent, loader_count
from guie.config.training import GenericImagesConfig
from guie.data.dataset import Batch, EvalDataset, TrainDataset, collated, each_tensor, image_shape
from guie.data.manifest import Manifest, load_manifest
from guie.data.sampling import RankBatches, Sampler
from guie.data.sampling.streams import key
from guie.data.shards.opening import fetch_images

T = TypeVar("T")
Prepared = tuple[Tensor, Tensor]  # network input and `image_shape`, like a sample of `EvalDataset`
TeacherFeatures = Callable[[], Iterator[Tensor]]  # restarts: yields (B, T) per batch, in order
# Larger images are resized by the loader, as memory holds many that wait. A photo of 4 megapixels.
LARGE_BYTES = 12_000_000


class TrainLoader:
    """Batches of one process of a stage, in the sampler's order for any number of workers.

    Batches are moved to the device, and their images are normalised there.
    """

    def __init__(
        self,
        dataset: TrainDataset,
        batches: RankBatches,
        workers: int | None,
        device: torch.device | str = "cpu",
        taught: TeacherFeatures | None = None,
    ):
        self.device, self.taught = torch.device(device), taught
        self.loader = _loader(dataset, collated, batches, loader_count(workers), self.device)
        # Loader processes inherit the original, which has to stay on the CPU.
        self.preprocess = copy.deepcopy(dataset.preprocess)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Prefetcher[Batch]:
        self.preprocess.to(self.device)
        return Prefetcher(
            with_teachers(whole_batches(self.loader), self.taught),
            lambda batch: batch.to(self.device).normalised(self.preprocess),
        )


def with_teachers(batches: Iterable[Batch], taught: TeacherFeatures | None) -> Iterator[Batch]:
    """Yield the batches, each with its teachers' features if they are given."""
    known = taught() if taught else None
    for batch in batches:
        yield replace(batch, teacher_BT=next(known)) if known else batch


def eval_loader(
    dataset: Dataset,
    batches: Sequence[Sequence[int]],
    workers: int | None,
    device: torch.device | str = "cpu",
    collate: Callable[[list[Any]], Any] = default_collate,
) -> Iterator[Any]:
    """Yield these batches of a data set, in order, on the CPU; `device` is their destination."""
    processes = loader_count(workers, len(batches))
    return whole_batches(_loader(dataset, collate, batches, processes, torch.device(device)))


class Prefetcher(Generic[T]):
    """Iterate over an iterable, fetching one item ahead; `ready` is applied to an item when it is returned.

    If fetching raises a UserError, `fault` holds it, so that all processes can stop together after the
    step before. Requesting that item raises it.
    """

    def __init__(self, items: Iterable[T], ready: Callable[[T], T] = lambda item: item):
        self._items, self._ready = iter(items), ready
        self.fault: UserError | None = None
        self._take()

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        if not self._taken:
            raise self.fault or StopIteration
        item = self._taken.pop()
        self._take()
        return self._ready(item)

    def _take(self) -> None:
        try:
            self._taken = [next(self._items)]
        except StopIteration:
            self._taken = []
        except UserError as fault:
            self._taken, self.fault = [], fault


def whole_batches(loader: DataLoader) -> Iterator[Any]:
    """Yield the batches of `_loader`. Raises UserError if a sample is bad or a worker died."""
    fault = None
    try:
        with _signals_as_they_were():
            batches = iter(loader)
        for batch in batches:
            if isinstance(batch, UserError):
                fault = batch
                break
            yield batch
    except (RuntimeError, OSError, EOFError) as error:
        # An exception raised in a worker arrives as "Caught ..." and is a bug in the code.
        if not loader.num_workers or str(error).startswith("Caught "):
            raise
        reason = f"{type(error).__name__} {error}".strip().partition("\n")[0]
        raise UserError(
            "a process that loads images died, perhaps killed because memory ran out;"
            f" use fewer workers, and run again (train.py: with --resume); {reason}"
        ) from error
    if fault:
        # Ends the workers; kept alive by a traceback, they would wait for their time-out
        del batches
        raise fault


class _FaultsAsValues(Dataset):
    """Return the samples of a batch, or only the first UserError among them.

    If it were raised, it would arrive from a worker embedded in a traceback.
    """

    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __getitems__(self, keys: Sequence[Any]) -> list[Any] | UserError:
        try:
            if hasattr(self.dataset, "files_of"):
                fetch_images(self.dataset.files_of(keys))
            return [self.dataset[key] for key in keys]
        except UserError as fault:
            return UserError(str(fault))


def _loader(
    dataset: Dataset,
    collate: Callable[[list[Any]], Any],
    batches: Iterable[Any],
    workers: int,
    device: torch.device,
) -> DataLoader:
    return DataLoader(
        _FaultsAsValues(dataset),
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=partial(_collated, collate),
        pin_memory=device.type == "cuda",
        # Its own generator: otherwise an iterator draws from the global stream, and a resumed run
        # would see other random numbers.
        generator=torch.Generator().manual_seed(0),
        worker_init_fn=follow_parent,
        multiprocessing_context=context() if workers else None,
    )


def _collated(collate: Callable[[list[Any]], Any], samples: list[Any] | UserError) -> Any:
    return samples if isinstance(samples, UserError) else collate(samples)


@contextmanager
def _signals_as_they_were() -> Iterator[None]:
    """Undo a loader's SIGCHLD handler, which raises in this process as soon as a worker dies.

    That could be in the middle of a step. A missing batch reveals the death too, some seconds later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        with children_block_sigterm():
            yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def load_generic(config: GenericImagesConfig) -> Manifest:
    """Return the manifest of the generic images, with the rows of one split. Raises UserError."""
    manifest = load_manifest(config.manifest, config.root)
    return replace(manifest, table=manifest.split(config.split))


def add_generic(
    dataset: TrainDataset, batches: RankBatches, generic: Manifest, batch_size: int
) -> None:
    """Add generic images, as `Batch.generic_GCHW`, to a stage's data set and batches.

    Their views are drawn like those of the training images; every image occurs once before any
    occurs twice. Batch s remains a function of (seed, s, rank).

    The batch size, over all processes, must be a multiple of their number. Raises UserError.
    """
    if batch_size % (ranks := batches.ranks):
        fault = f"retention.generic.batch_size {batch_size} cannot be shared by {ranks} processes"
        raise UserError(f"{fault}; make it a multiple of {ranks}")
    rows, seed = generic.table, (*dataset.seed, key("generic"))
    dataset.generic = TrainDataset(
        rows.drop(columns="caption", errors="ignore"),
        rows["label"].unique(),
        generic.root,
        dataset.augment,
        dataset.preprocess,
        seed,
        generic.sidecar.decode,
    )
    sampler = Sampler(rows["domain"], "mixed", batch_size, seed)
    steps = batches.steps
    batches.generic = RankBatches(sampler, steps.start, steps.stop, batches.rank, ranks)


@dataclass(frozen=True)
class RawBatch:
    """Decoded images of any sizes, which a GPU resizes and normalises: in float, a loader takes longer.

    They are one after another in one tensor: many tensors are slow to send and to copy.
    Shapes: N bytes of all images, B images, G images of equal size, L large images.
    """

    pixels_N: Tensor  # uint8, each image as (H, W, 3)
    shapes_B3: Tensor  # `image_shape` of all images
    sizes: Sequence[tuple[int, int] | None]  # height and width; None for a large image
    inputs_L: Tensor | None  # network inputs of the large images, in order

    def to(self, device: torch.device) -> RawBatch:
        """Return the batch with its tensors on the device; the CPU does not wait for the GPU's work."""
        return each_tensor(self, lambda tensor: tensor.to(device, non_blocking=True))

    def prepared(self, preprocess: Callable[[Tensor], Tensor]) -> Prepared:
        """Return network inputs and shapes (B, 3) in order, like a batch of `EvalDataset`.

        Images of equal size are resized together, which changes no bit of the result on a CPU.
        """
        rows: list[Tensor | None] = [None] * len(self.sizes)
        equal: dict[tuple[int, int], list[tuple[int, Tensor]]] = defaultdict(list)
        start = 0
        for place, size in enumerate(self.sizes):
            if size:
                stop = start + 3 * size[0] * size[1]
                equal[size].append((place, self.pixels_N[start:stop].view(*size, 3)))
                start = stop
        for pairs in equal.values():
            places, images = zip(*pairs, strict=True)
            images_GHWC = torch.stack(images) if len(images) > 1 else images[0][None]
            inputs = preprocess(images_GHWC.permute(0, 3, 1, 2))
            for place, one in zip(places, inputs.unbind(), strict=True):
                rows[place] = one
        large = iter(() if self.inputs_L is None else self.inputs_L.unbind())
        return torch.stack([next(large) if row is None else row for row in rows]), self.shapes_B3


class RawImages(Dataset):
    """The images of an `EvalDataset` before preprocessing; a large one after it."""

    def __init__(self, dataset: EvalDataset):
        self.dataset, self.files_of = dataset, dataset.files_of

    def __getitem__(self, index: int) -> np.ndarray | Prepared:
        """Return uint8 (H, W, 3), or the result of `EvalDataset`."""
        image_HWC = self.dataset.pixels(index)
        return self.dataset.prepared(image_HWC) if image_HWC.nbytes > LARGE_BYTES else image_HWC


def packed(samples: Sequence[np.ndarray | Prepared]) -> RawBatch:
    """Collate samples of `RawImages`."""
    pixels_N = _empty(sum(one.nbytes for one in samples if isinstance(one, np.ndarray)))
    sizes: list[tuple[int, int] | None] = []
    start, shapes, large = 0, [], []
    for one in samples:
        if isinstance(one, np.ndarray):
            stop = start + one.nbytes
            pixels_N.numpy()[start:stop] = one.reshape(-1)
            start, (height, width) = stop, one.shape[:2]
            sizes.append((height, width))
            shapes.append(torch.tensor(image_shape(height, width)))
        else:
            inputs, shape = one
            sizes.append(None)
            shapes.append(shape)
            large.append(inputs)
    inputs_L = default_collate(large) if large else None
    return RawBatch(pixels_N, torch.stack(shapes), sizes, inputs_L)


def _empty(size: int) -> Tensor:
    """Return memory for N bytes; in a loader process shared, which saves a copy when it is sent."""
    if get_worker_info() is None:
        return torch.empty(size, dtype=torch.uint8)
    shared = torch.UntypedStorage._new_shared(size)  # as `default_collate` does
    return torch.empty(0, dtype=torch.uint8).set_(shared)
