"""A search of minutes: shared by the processes of a launch, and gone on with after a kill."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.devices import from_main, make_accelerator
from guie.evaluation import neighbours, searching
from guie.evaluation.kept import KeptBlocks

LONG = 2 * 10**10  # pairs of query and index image: half a minute on two cores


def search_together(
    work: Callable[[KeptBlocks | None], None],
    share: Callable[[KeptBlocks], None],
    folder: Path,
    key: str,
    pairs: int,
) -> None:
    """Do the work in the main process, once all processes have searched their blocks.

    Args:
        work: searches, and writes the result; blocks that are kept are not searched again.
        share: searches the blocks of this process, and drops what it finds.
        folder: where blocks are kept until the work is done; a short search keeps none.
        key: of embeddings, table and protocol; blocks of another key are dropped.
        pairs: of query and index image, in all.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1 and pairs < LONG:
        work(None)
        return
    if processes == 1:
        KeptBlocks.open(folder, key)
        kept = KeptBlocks(folder)
        work(kept)
        kept.remove()
        return
    accelerator = make_accelerator()
    from_main(accelerator, lambda: KeptBlocks.open(folder, key))
    share(KeptBlocks(folder, accelerator.process_index, processes))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        kept = KeptBlocks(folder)
        work(kept)
        kept.remove()
    accelerator.wait_for_everyone()
    accelerator.end_training()


def key_of(embeddings: Iterable[np.ndarray], table: pd.DataFrame, *words: object) -> str:
    """A hash of all that the blocks of a search depend on."""
    digest = hashlib.sha256()
    for array_TD in embeddings:
        digest.update(f"{array_TD.dtype} {array_TD.shape}".encode())
        digest.update(np.ascontiguousarray(array_TD).data)
    columns = [
        c for c in ("image_path", "label", "domain", "role", "dataset", "subsets") if c in table
    ]
    digest.update(pd.util.hash_pandas_object(table[columns], index=False).to_numpy().tobytes())
    words = (*words, searching.MOST_QUERIES, neighbours.RESERVED_BYTES)
    digest.update(repr(words).encode())
    return digest.hexdigest()


def pairs_of(table: pd.DataFrame) -> int:
    """Queries times index images of a merged index: as many as any protocol compares."""
    role = table["role"]
    return int(role.isin(["query", "both"]).sum()) * int(role.isin(["index", "both"]).sum())
