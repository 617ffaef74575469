"""Fixed views of training images, over and over, and what a model makes of them, kept on disk.

View v of an image is drawn from (seed of the stage, v, image path). The n-th time that a stage draws
the image, counted from 0, it takes view n mod k: a function of the step, so a resume is exact.
"""

from __future__ import annotations

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
from guie.batches.dataset import Samples, TrainDataset
from guie.batches.sampling.streams import key
from guie.data.looks.decoded import absolute
from guie.evaluation.extract import Check, Embeds, embed_blocks, raise_fault
from guie.evaluation.features.cache import FeatureCache, Features
from guie.evaluation.features.computing import fill, readable_states

VERSION = 1  # raise it where the same config draws other views
DECODER = "open_part"  # of TrainDataset
BYTES = np.dtype(np.float16).itemsize


class View(Samples):
    """One view of every training image, as `TrainDataset` makes it, not yet normalised."""

    def __init__(self, dataset: TrainDataset, view: int, rows: Sequence[int] | np.ndarray):
        self.dataset, self.view, self.rows = dataset, view, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = int(self.rows[index])
        # By the path: other rows in the manifest must not change what is drawn for this one.
        sample = self.dataset[self.view, key(self.dataset.paths[row]), row]
        return sample["image"], sample["shape"]


def cached_views(
    accelerator: Accelerator,
    embedder: Embeds,
    known_by: dict[str, Any],
    dataset: TrainDataset,
    views: int,
    folder: Path,
    workers: int = 2,
    *,
    rows: np.ndarray | None = None,
    title: str = "features",
    check: Check = raise_fault,
) -> list[Features]:
    """Features of each view of a stage's training images, computed where the cache has none.

    Every process must call it.

    Args:
        embedder: takes images as `TrainDataset` hands them over, uint8 and not normalised, and their
            shapes; on the device.
        known_by: all that a feature depends on but the view.
        views: k.
        rows: of the data set; None: all.
        check: as of `embed_blocks`.

    Raises UserError where an image cannot be read, a feature is beyond float16, or the disk has no room.
    """
    caches = _view_caches(known_by, dataset, views, folder)
    of_rows = np.arange(len(dataset)) if rows is None else rows
    files = absolute(dataset.root, dataset.paths[of_rows])
    states = from_main(accelerator, lambda: readable_states(files, DECODER))
    missing = from_main(accelerator, lambda: [cache.missing(states) for cache in caches])
    row_bytes = embedder.dim * BYTES
    wanted = sum(len(rows) for rows in missing) * row_bytes
    accelerator.print(
        f"{title} of {views} views of {len(files):,} images:"
        f" {views * len(files) * row_bytes / 1e6:,.1f} MB in {folder},"
        f" {wanted / 1e6:,.1f} MB of it yet to be computed"
    )
    from_main(accelerator, lambda: _check_room(folder, wanted))

    for view, cache in enumerate(caches):
        viewed, said = View(dataset, view, of_rows[missing[view]]), f"{title} (view {view})"
        blocks = embed_blocks(
            accelerator, embedder, viewed, workers=workers, title=said, check=check
        )
        fill(accelerator, cache, states, missing[view], blocks)
    return [cache.open(states, embedder.dim) for cache in caches]


def _view_caches(
    known_by: dict[str, Any], dataset: TrainDataset, views: int, folder: Path
) -> list[FeatureCache]:
    drawn = {
        "seed": list(dataset.seed),
        "root": str(dataset.root.absolute()),
        "augment": dataset.augment.config.model_dump(mode="json"),
        "version": f"{VERSION}, albumentations {version('albumentations')}",
    }
    if dataset.augment.config.mixup:  # which image shines through depends on all that are there
        drawn["rows"] = hashlib.sha256("\n".join(dataset.paths).encode()).hexdigest()
    return [
        FeatureCache(folder, known_by | {"view": {"number": view, **drawn}})
        for view in range(views)
    ]


def _check_room(folder: Path, wanted_bytes: int) -> None:
    here = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(here).free
    if wanted_bytes > free_bytes:
        raise UserError(
            f"{folder}: the features need {wanted_bytes:,} bytes, {free_bytes:,} are free; free"
            " some, lower cached_views, or move the folder of runs (out)"
        )
