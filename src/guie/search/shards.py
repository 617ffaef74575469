"""An index in parts, made by several machines or processes, and joined.

Each shard is an index by itself. Joined, vectors are copied file by file, never all in memory; faiss'
inverted lists are merged on disk (`faiss.contrib.ondisk`): memory holds the codes of one shard, the rows of
all, and the vectors that faiss trains on. A flat index of them is
searched in memory, though. Shapes: N pictures of all shards, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
from faiss.contrib.ondisk import merge_ondisk
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.search.building import claimed, finish
from guie.search.engines import ADDED, trained
from guie.search.index import FACTS, FAISS, LISTS, Facts, Index, read_index


def merge(folders: Sequence[Path], out: Path, factory: str | None, probes: int | None) -> Index:
    """One index of several shards.

    Args:
        factory: faiss' string with an inverted file (`IVF`), trained on all shards alike; None: flat.

    Raises UserError where the shards are not of one model and source, or hold one picture twice, or the
    folder is one of them, or of something else, or another process writes there.
    """
    if out.resolve() in [folder.resolve() for folder in folders]:
        raise UserError(f"--out {out}: is one of the shards; name another folder")
    shards = [read_index(folder, every_byte=True) for folder in folders]
    facts = _common(shards)
    files = pd.concat([shard.files for shard in shards], ignore_index=True)
    twice = files["image_path"][files["image_path"].duplicated()]
    if len(twice):
        raise UserError(f"{twice.iloc[0]}: in two of the shards; each picture belongs to one")
    facts = replace(facts, factory=factory, probes=probes, shard=None, recall={})
    with claimed(out):
        if (out / FACTS).exists():  # an earlier merge of theirs, which is replaced
            _common([read_index(out), *shards])
        bar = tqdm(shards, desc="vectors", unit="shard")
        blocks = (block for shard in bar for block in _blocks(shard))
        return finish(out, facts, files, blocks, partial(_merged, shards))


def _blocks(shard: Index) -> Iterator[np.ndarray]:
    vectors_ND = shard.vectors()
    for at in range(0, len(vectors_ND), ADDED):
        yield np.ascontiguousarray(vectors_ND[at : at + ADDED])


def _common(shards: Sequence[Index]) -> Facts:
    first = shards[0]
    for shard in shards[1:]:
        for key, what in (("recipe", "another model"), ("root", "another folder")):
            if getattr(shard.facts, key) != getattr(first.facts, key):
                raise UserError(f"{shard.folder}: is of {what} than {first.folder}")
    return first.facts


def _merged(
    shards: Sequence[Index], factory: str, vectors_ND: np.ndarray, data: Path
) -> faiss.Index:
    """faiss' inverted lists of each shard in a file of its own, then all of them in one."""
    empty = trained(factory, vectors_ND)
    if not isinstance(faiss.downcast_index(empty), faiss.IndexIVF):
        raise UserError(f"--factory {factory}: has no inverted lists to merge; take IVF..., say")
    names, start = [], 0
    for number, shard in enumerate(tqdm(shards, desc="lists", unit="shard")):
        own = faiss.clone_index(empty)
        for block_BD in _blocks(shard):
            own.add_with_ids(block_BD, np.arange(start, start + len(block_BD)))
            start += len(block_BD)
        names.append(str(data / f"vectors.{number}.faiss"))
        faiss.write_index(own, names[-1])
    merge_ondisk(empty, names, str(data / LISTS))
    with replacing(data / FAISS) as temporary:
        faiss.write_index(empty, str(temporary))
    for name in names:
        Path(name).unlink()
    return empty
