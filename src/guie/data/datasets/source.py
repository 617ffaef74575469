"""A mix config's dataset source, read: what `src/curate.py` calls."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TypeVar

from guie.config.base import Config
from guie.config.sources import DatasetSource
from guie.data.datasets import DATASETS, read_dataset
from guie.data.datasets.finding import inside, located
from guie.data.datasets.thinning import keep_classes, thin_test
from guie.data.manifest import Manifest
from guie.data.manifest.companions import within

AnySource = TypeVar("AnySource", bound=Config)


def with_path(source: AnySource) -> AnySource:
    """A dataset source with its folder filled in; any other source as it is. Raises UserError."""
    if not isinstance(source, DatasetSource):
        return source
    return source.model_copy(update={"path": str(_folder(source))})


def read_source(
    source: DatasetSource, seed: int = 0, workers: int = 1
) -> tuple[Manifest, Counter[str], tuple[str, ...]]:
    """A dataset source as a manifest, counts of what was left out by reason, and warnings.

    Raises UserError if the dataset is not found, not whole, or asked for what it has not.
    """
    folder = _folder(source)
    reading = read_dataset(
        DATASETS[source.kind],
        folder,
        splits=source.splits,
        domain=source.domain,
        partial=source.partial,
        as_train=source.as_train,
        **source.options,
    )
    table, skipped = reading.table, Counter[str]()
    if source.max_classes is not None:
        table = keep_classes(table, source.max_classes, source.choose_classes, seed)
        skipped["train image of a class that was not chosen"] = len(reading.table) - len(table)
    before = len(table)
    if source.test_max_images or source.test_near_duplicate_bits is not None:
        table = thin_test(
            table,
            folder,
            max_images=source.test_max_images,
            near_duplicate_bits=source.test_near_duplicate_bits,
            seed=seed,
            workers=workers,
        )
    skipped["test image beyond the class's limit, or a near-duplicate"] = before - len(table)
    manifest = Manifest(table, folder, folder, reading.sidecar, within(reading.companions, table))
    return manifest, +skipped, reading.warnings


def _folder(source: DatasetSource) -> Path:
    dataset = DATASETS[source.kind]
    return inside(dataset, source.path) if source.path else located(source.kind)
