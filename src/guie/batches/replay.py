"""Generic images beside the training images, in one loader: a stage's batch brings both along.

Shapes: G generic images of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from guie.base.errors import UserError
from guie.batches.dataset import TrainDataset
from guie.batches.sampling import RankBatches, Sampler
from guie.batches.sampling.streams import key
from guie.config.run import GenericImagesConfig
from guie.data.manifest import Manifest, load_manifest

Key = tuple[int, int, int]  # step, position in the global batch, row


def load_generic(config: GenericImagesConfig) -> Manifest:
    """The configured rows of the second manifest. Its labels and domains play no part.

    Raises UserError if the split has none.
    """
    manifest = load_manifest(config.manifest, config.root)
    return Manifest(manifest.split(config.split), manifest.root, manifest.path, manifest.sidecar)


def with_generic(
    dataset: TrainDataset, batches: RankBatches, generic: Manifest, batch_size: int
) -> tuple[Both, BothBatches]:
    """Data set and batches that bring generic images too, as `Batch.generic_GCHW`.

    The views are drawn as those of the training images; every image comes once before any comes
    twice. Batch s is a function of (seed, s, rank), as ever.

    Args:
        dataset, batches: of a stage.
        generic: what to draw from.
        batch_size: generic images of a step, over all processes.

    Raises:
        UserError: if the processes cannot share them evenly.
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
    )
    sampler = Sampler(rows["domain"], "mixed", batch_size, seed)
    steps = batches.steps
    drawn = RankBatches(sampler, steps.start, steps.stop, batches.rank, batches.ranks)
    return Both(dataset, images), BothBatches(batches, drawn, len(dataset))


class Both(Dataset):
    """Training rows, and after the last of them the generic ones."""

    def __init__(self, train: TrainDataset, generic: TrainDataset):
        self.train, self.generic, self.preprocess = train, generic, train.preprocess

    def __len__(self) -> int:
        return len(self.train) + len(self.generic)

    def __getitem__(self, place: Key) -> dict[str, Any]:
        step, position, row = place
        if row < len(self.train):
            return self.train[place]
        sample = self.generic[step, position, row - len(self.train)]
        return {"generic": sample["image"]}


class BothBatches(torch.utils.data.Sampler):
    """The batches of two samplers, step by step; rows of the second begin at `first`."""

    def __init__(self, train: RankBatches, generic: RankBatches, first: int):
        self.train, self.generic, self.first = train, generic, first

    def __len__(self) -> int:
        return len(self.train)

    def __iter__(self) -> Iterator[list[Key]]:
        for train, generic in zip(self.train, self.generic, strict=True):
            yield [*train, *((step, place, self.first + row) for step, place, row in generic)]
