"""Load batches, optionally with generic images, in worker processes that end with this one.

An error in a worker ends the run with one line.
"""

from __future__ import annotations

import copy
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from guie.base.errors import UserError
from guie.base.processes import context, follow_parent, loader_count
from guie.config.training import GenericImagesConfig
from guie.data.dataset import Batch, TrainDataset, collated
from guie.data.manifest import Manifest, load_manifest
from guie.data.sampling import RankBatches, RankViews, Sampler
from guie.data.sampling.streams import key
from guie.data.shards.opening import fetch_images

T = TypeVar("T")
Key = tuple[int, int, int]  # step, position in the global batch, row
TeacherFeatures = Callable[[], Iterator[Tensor]]  # restarts: yields (B, T) per batch, in order


class TrainLoader:
    """Batches of one process of a stage, in the sampler's order for any number of workers.

    Batches are moved to the device, and their images are normalised there.

    Args:
        taught: returns an iterator over the teachers' features of each batch, in order; or None.
    """

    def __init__(
        self,
        dataset: TrainDataset | TrainAndGeneric,
        batches: RankBatches | RankViews | TrainAndGenericBatches,
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
    """Iterate over an iterable, fetching one item ahead.

    If fetching raises a UserError, `fault` holds it, so that all processes can stop together after the
    step before. Requesting that item raises it.

    Args:
        ready: function applied to each item when it is returned.
    """

    def __init__(self, items: Iterable[T], ready: Callable[[T], T] = lambda item: item):
        self._items, self._ready = iter(items), ready
        self.fault: UserError | None = None
        self._take()

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        if self.fault and not self._taken:
            raise self.fault
        if not self._taken:
            raise StopIteration
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
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def load_generic(config: GenericImagesConfig) -> Manifest:
    """Return the configured rows of the generic images' manifest. Its labels and domains are unused.

    Raises UserError if the split has no rows.
    """
    manifest = load_manifest(config.manifest, config.root)
    return Manifest(manifest.split(config.split), manifest.root, manifest.path, manifest.sidecar)


def with_generic(
    dataset: TrainDataset, batches: RankBatches, generic: Manifest, batch_size: int
) -> tuple[TrainAndGeneric, TrainAndGenericBatches]:
    """Add generic images, as `Batch.generic_GCHW`, to a stage's data set and batches.

    Their views are drawn like those of the training images; every image occurs once before any
    occurs twice. Batch s remains a function of (seed, s, rank).

    Args:
        dataset, batches: of a stage.
        generic: manifest of the generic images.
        batch_size: generic images per step, over all processes.

    Raises:
        UserError: if the batch size is not a multiple of the number of processes.
    """
    if batch_size % batches.ranks:
        raise UserError(
            f"retention.generic.batch_size {batch_size} cannot be shared by {batches.ranks}"
            f" processes; make it a multiple of {batches.ranks}"
        )
    rows, seed = generic.table, (*dataset.seed, key("generic"))
    images = TrainDataset(
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
    drawn = RankBatches(sampler, steps.start, steps.stop, batches.rank, batches.ranks)
    return TrainAndGeneric(dataset, images), TrainAndGenericBatches(batches, drawn, len(dataset))


class TrainAndGeneric(Dataset):
    """The training rows, followed by the generic ones."""

    def __init__(self, train: TrainDataset, generic: TrainDataset):
        self.train, self.generic, self.preprocess = train, generic, train.preprocess

    def __len__(self) -> int:
        return len(self.train) + len(self.generic)

    def files_of(self, keys: Sequence[Key]) -> list[str]:
        train, first = [place for place in keys if place[-1] < len(self.train)], len(self.train)
        generic = [(*place[:-1], place[-1] - first) for place in keys if place[-1] >= first]
        return self.train.files_of(train) + self.generic.files_of(generic)

    def __getitem__(self, place: Key) -> dict[str, Any]:
        step, position, row = place
        if row < len(self.train):
            return self.train[place]
        sample = self.generic[step, position, row - len(self.train)]
        return {"generic": sample["image"]}


class TrainAndGenericBatches:
    """The concatenated batches of two samplers, step by step; rows of the second start at `first`."""

    def __init__(self, train: RankBatches, generic: RankBatches, first: int):
        self.train, self.generic, self.first = train, generic, first

    def __len__(self) -> int:
        return len(self.train)

    def __iter__(self) -> Iterator[list[Key]]:
        for train, generic in zip(self.train, self.generic, strict=True):
            yield [*train, *((step, place, self.first + row) for step, place, row in generic)]
