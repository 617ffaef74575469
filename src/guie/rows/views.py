"""Store features of a fixed number of random views of training images."""

import hashlib
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from torch import Tensor

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.data.dataset import Samples, TrainDataset
from guie.data.sampling.streams import key
from guie.rows.embedding import Check, Embeds, OnDevices, raise_fault
from guie.rows.filling import fill
from guie.rows.states import readable_states
from guie.rows.store import Rows, Store

VERSION = 1  # raise it if the same config draws other views
# Variants of the decoders of TrainDataset
DECODERS = {"seen": "open_part", "host": "open_part as host"}
BYTES = np.dtype(np.float16).itemsize


class TrainingView(Samples):
    """One view of training images, made by `TrainDataset`, not yet normalised."""

    def __init__(self, dataset: TrainDataset, view: int, rows: Sequence[int] | np.ndarray):
        self.dataset, self.view, self.rows = dataset, view, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = int(self.rows[index])
        # Seeded by the path: other rows of the manifest must not change the draws for this one.
        sample = self.dataset[self.view, key(self.dataset.paths[row]), row]
        return sample["image"], sample["shape"]


def stored_views(
    accelerator: Accelerator,
    embedder: Embeds,
    known_by: dict[str, Any],
    dataset: TrainDataset,
    views: int,
    folder: Path,
    workers: int | None = None,
    *,
    rows: np.ndarray | None = None,
    title: str = "features",
    check: Check = raise_fault,
) -> list[Rows]:
    """Return features of each view of a stage's training images, and compute those not stored.

    Every process must call it.

    Args:
        embedder: takes the images of `TrainDataset`, uint8 and not normalised, and their shapes;
            it is on the device.
        known_by: all that a feature depends on except the image and the view.
        views: the number of views.
        rows: of the data set; None for all.

    Raises UserError if an image cannot be read, a feature overflows float16, or the disk is full.
    """
    store = Store(folder, known_by | {"drawn": _drawn(dataset)}, np.float16)
    of_rows = np.arange(len(dataset)) if rows is None else rows
    paths = dataset.paths.take(of_rows)
    known = from_main(accelerator, lambda: readable_states(dataset.root, paths))
    decoder = DECODERS[dataset.decode]
    states = [known.of(f"{decoder}, view {view}") for view in range(views)]
    missing = from_main(accelerator, lambda: [len(store.missing(one)) for one in states])
    row_bytes = embedder.dim * BYTES
    accelerator.print(
        f"{title} of {views} views of {len(of_rows):,} images:"
        f" {views * len(of_rows) * row_bytes / 1e6:,.1f} MB in {folder},"
        f" {sum(missing) * row_bytes / 1e6:,.1f} MB of them not yet computed"
    )
    from_main(accelerator, lambda: _check_room(folder, sum(missing) * row_bytes))
    for view, one in enumerate(states):
        viewed = TrainingView(dataset, view, of_rows)
        compute = OnDevices(accelerator, embedder, viewed, workers=workers, check=check)
        fill(store, one, compute, title=f"{title} (view {view})")
    return [store.open(one, embedder.dim) for one in states]


def drawn_rows(views: Sequence[Rows], visits_B: np.ndarray, places_B: np.ndarray) -> np.ndarray:
    """Return a row per image of a batch, at its place in the view of its visit; 0 for place -1.

    An image was drawn visits_B times before; visits take the views in turn.
    """
    views_B = visits_B % len(views)
    found_BR = np.zeros((len(places_B), views[0].shape[1]), np.float32)
    for view in np.unique(views_B):
        here = (views_B == view) & (places_B >= 0)
        found_BR[here] = views[view][places_B[here]]
    return found_BR


def _drawn(dataset: TrainDataset) -> dict[str, Any]:
    """Return all that a view depends on except the image and its number."""
    drawn = {
        "seed": list(dataset.seed),
        "augment": dataset.augment.config.model_dump(mode="json"),
        "version": f"{VERSION}, albumentations {version('albumentations')}",
    }
    if dataset.augment.config.mixup:  # the image that is mixed in depends on all rows
        drawn["rows"] = hashlib.sha256("\n".join(dataset.paths).encode()).hexdigest()
    return drawn


def _check_room(folder: Path, wanted_bytes: int) -> None:
    here = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(here).free
    if wanted_bytes > free_bytes:
        remedy = "free disk space, lower cached_views, or move the folder of runs (out)"
        need = f"the features need {wanted_bytes:,} bytes, {free_bytes:,} are free"
        raise UserError(f"{folder}: {need}; {remedy}")
