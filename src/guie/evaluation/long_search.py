"""Share a long search among processes, and resume it after a stop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from guie.evaluation.knn import RESERVED_BYTES, search_threads
from guie.evaluation.search import MOST_QUERIES, ScoreStore
from guie.rows.store import Store

LONG = 2 * 10**10  # pairs of query and index image: half a minute on two cores
COLUMNS = ("image_path", "label", "domain", "role", "dataset", "subsets")  # that scores depend on


def search_together(
    work: Callable[[ScoreStore | None], None],
    share: Callable[[ScoreStore], None],
    folder: Path,
    key: str,
    pairs: int,
) -> None:
    """Run `work` in the main process, once all processes have searched and stored their shares.

    Args:
        work: searches what is not stored, and writes the result.
        share: searches and stores the share of this process.
        folder: of the store, until the work is done; a short search stores nothing.
        key: hash of embeddings, table and protocol; scores of another one are not taken.
        pairs: total number of pairs of query and index image.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1 and pairs < LONG:
        work(None)
        return
    store = Store(folder, {"scores": "of queries"})
    if processes == 1:
        work(ScoreStore(store, prefix=key))
        store.remove()
        return
    # Imported here, as a search in one process needs no torch.
    from guie.base.devices import make_accelerator

    accelerator = make_accelerator()
    with search_threads(int(os.environ.get("LOCAL_WORLD_SIZE", processes))):
        share(ScoreStore(store, (accelerator.process_index, processes), key))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        work(ScoreStore(store, prefix=key))
        store.remove()
    accelerator.wait_for_everyone()
    accelerator.end_training()


def key_of(embeddings: Iterable[np.ndarray], table: pd.DataFrame, settings: object) -> str:
    """Return a hash of all that the blocks of a search depend on."""
    digest = hashlib.sha256()
    for array_TD in embeddings:
        digest.update(f"{array_TD.dtype} {array_TD.shape}".encode())
        digest.update(np.ascontiguousarray(array_TD).data)
    known = table[[column for column in COLUMNS if column in table]]
    digest.update(pd.util.hash_pandas_object(known, index=False).to_numpy().tobytes())
    digest.update(repr((settings, MOST_QUERIES, RESERVED_BYTES)).encode())
    return digest.hexdigest()
