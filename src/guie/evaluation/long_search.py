"""Share a long search among processes, and resume it after a stop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from guie.evaluation.knn import RESERVED_BYTES, search_threads
from guie.evaluation.search import MOST_QUERIES, BlockCache

LONG = 2 * 10**10  # pairs of query and index image: half a minute on two cores


def search_together(
    work: Callable[[BlockCache | None], None],
    share: Callable[[BlockCache], None],
    folder: Path,
    key: str,
    pairs: int,
) -> None:
    """Run `work` in the main process, once all processes have searched their blocks.

    Args:
        work: searches and writes the result; cached blocks are not searched again.
        share: searches and caches the blocks of this process, without a result.
        folder: where blocks are cached until the work is done; a short search caches none.
        key: hash of embeddings, table and protocol; blocks of another key are deleted.
        pairs: total number of pairs of query and index image.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1 and pairs < LONG:
        work(None)
        return
    if processes == 1:
        BlockCache.open(folder, key)
        kept = BlockCache(folder)
        work(kept)
        kept.remove()
        return
    # Imported here, as a search in one process needs no torch.
    from guie.base.devices import from_main, make_accelerator

    accelerator = make_accelerator()
    from_main(accelerator, lambda: BlockCache.open(folder, key))
    with search_threads(int(os.environ.get("LOCAL_WORLD_SIZE", processes))):
        share(BlockCache(folder, accelerator.process_index, processes))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        kept = BlockCache(folder)
        work(kept)
        kept.remove()
    accelerator.wait_for_everyone()
    accelerator.end_training()


def key_of(embeddings: Iterable[np.ndarray], table: pd.DataFrame, *words: object) -> str:
    """Return a hash of all that the blocks of a search depend on."""
    digest = hashlib.sha256()
    for array_TD in embeddings:
        digest.update(f"{array_TD.dtype} {array_TD.shape}".encode())
        digest.update(np.ascontiguousarray(array_TD).data)
    columns = [
        c for c in ("image_path", "label", "domain", "role", "dataset", "subsets") if c in table
    ]
    digest.update(pd.util.hash_pandas_object(table[columns], index=False).to_numpy().tobytes())
    words = (*words, MOST_QUERIES, RESERVED_BYTES)
    digest.update(repr(words).encode())
    return digest.hexdigest()


def pairs_of(table: pd.DataFrame) -> int:
    """Return queries times index images of a merged index, the most that any protocol compares."""
    role = table["role"]
    return int(role.isin(["query", "both"]).sum()) * int(role.isin(["index", "both"]).sum())
