"""Read a data set as the source of a mix, with some of its train classes and few images per test class.

Many views of one object, or one picture many times, make retrieval look solved. UnED therefore removes
near-duplicates and keeps at most ten images per test class of Food2K and RP2K (section 3.1, which does not
describe how). Here two images are near-duplicates if their perceptual hashes are close.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.config.data import DatasetSource
from guie.data.datasets import DATASETS, Reading, read_dataset
from guie.data.datasets.finding import folder_of
from guie.data.datasets.readers import present
from guie.data.images import open_as_seen
from guie.data.manifest.companions import within
from guie.rows.filling import mapped
from guie.rows.fingerprints import perceptual_hashes


def read_source(
    source: DatasetSource, seed: int = 0, workers: int = 1
) -> tuple[Reading, Counter[str]]:
    """Return a data set source as a manifest, and counts of skipped images by reason. Raises UserError."""
    folder = folder_of(source)
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
    before, most, bits = len(table), source.test_max_images, source.test_near_duplicate_bits
    if most or bits is not None:
        table = thin_test(
            table, folder, max_images=most, near_duplicate_bits=bits, seed=seed, workers=workers
        )
    skipped["test image beyond the class's limit, or a near-duplicate"] = before - len(table)
    companions = within(reading.companions, table)
    return replace(reading, table=table, companions=companions), +skipped


def keep_classes(
    table: pd.DataFrame, max_classes: int, choose: Literal["largest", "random"], seed: int
) -> pd.DataFrame:
    """Return the table with `max_classes` train classes per domain, indexed from 0.

    Keep the largest, ties by name, or a random choice that depends only on the seed and the names. A
    label with several classes counts as a class of its own.
    """
    train = table[table["split"] == "train"]
    classes = train.groupby(["domain", "label"]).size().rename("images").reset_index()
    draw = seeded_draws(seed, classes["label"])
    classes = classes.assign(draw=-classes["images"] if choose == "largest" else draw)
    ranked = classes.sort_values(["draw", "label"]).groupby("domain").cumcount()
    gone = classes.loc[ranked.index[ranked >= max_classes], "label"]
    return table.drop(index=train.index[train["label"].isin(gone)]).reset_index(drop=True)


def thin_test(
    table: pd.DataFrame,
    folder: Path,
    *,
    max_images: int | None,
    near_duplicate_bits: int | None,
    seed: int,
    workers: int = 1,
) -> pd.DataFrame:
    """Return the table with fewer images per test class, in its order, indexed from 0.

    Only rows with role `both` are affected. Images of a class are visited in a random order that depends
    only on the seed and their paths. An image is kept unless it is a near-duplicate of one kept before.
    Only the images needed are opened. One that cannot be decoded is kept, for verification to report.
    """
    test = table[(table["split"] == "test") & (table["role"] == "both")]
    drawn = test.iloc[np.argsort(seeded_draws(seed, test["image_path"]), kind="stable")]
    classes = drawn.groupby("label")["image_path"].agg(list).tolist()
    limit = max_images or len(table)
    if near_duplicate_bits is None:
        chosen = [paths[:limit] for paths in classes]
    else:
        choose = partial(distinct, folder, limit, near_duplicate_bits)
        found = mapped(choose, classes, workers, chunk=4)
        chosen = [*tqdm(found, "near-duplicates", len(classes), unit="class", disable=None)]
    kept = frozenset(chain.from_iterable(chosen))
    gone = test.index[~present(test["image_path"], kept)]
    return table.drop(index=gone).reset_index(drop=True)


def distinct(folder: Path, limit: int, bits: int, paths: list[str]) -> list[str]:
    """Return the first `limit` of `paths` whose hashes differ in more than `bits`, or that have none."""
    kept: list[str] = []
    hashes: list[int] = []
    for path in paths:
        if len(kept) == limit:
            break
        try:
            digits = perceptual_hashes(open_as_seen(folder / path)).content
        except UserError:
            digits = ""
        if digits:
            code = int(digits, 16)
            if any((code ^ other).bit_count() <= bits for other in hashes):
                continue
            hashes.append(code)
        kept.append(path)
    return kept
