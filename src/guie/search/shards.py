"""An index in parts, made by several machines or processes, and joined.

Each shard is an index by itself. Joined, vectors are copied file by file, never all in memory; faiss'
inverted lists are merged on disk (`faiss.contrib.ondisk`): memory holds the codes of one shard, the rows of
all, and the vectors that faiss trains on. A flat index of them is
searched in memory, though. Shapes: N pictures of all shards, D dimensions.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
from faiss.contrib.ondisk import merge_ondisk
from numpy.lib.format import open_memmap
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.search.building import recall
from guie.search.engines import ADDED, Approximate, Engine, Flat, trained
from guie.search.index import (
    FAISS,
    FLAT,
    LISTS,
    Facts,
    Index,
    next_generation,
    publish,
    read_index,
    write_files,
)
from guie.search.sureness import sureness_of


def merge(folders: Sequence[Path], out: Path, factory: str | None, probes: int | None) -> Index:
    """One index of several shards.

    Args:
        factory: faiss' string with an inverted file (`IVF`), trained on all shards alike; None: flat.

    Raises UserError where the shards are not of one model and source, or hold one picture twice.
    """
    shards = [read_index(folder) for folder in folders]
    facts = _common(shards)
    files = pd.concat([shard.files for shard in shards], ignore_index=True)
    twice = files["image_path"][files["image_path"].duplicated()]
    if len(twice):
        raise UserError(f"{twice.iloc[0]}: in two of the shards; each picture belongs to one")
    data = next_generation(out)
    vectors_ND = _copied(shards, data / FLAT, len(files), facts.dimension)
    write_files(data, files)
    facts = replace(facts, factory=factory, probes=probes, pictures=len(files), shard=None)
    engine: Engine = Flat(vectors_ND)
    if factory:
        made = _merged(factory, shards, vectors_ND, data)
        engine = Approximate(made, vectors_ND, probes)
        facts = replace(facts, recall=recall(engine, vectors_ND))
    return publish(data, replace(facts, sureness=sureness_of(files, vectors_ND, engine)))


def _common(shards: Sequence[Index]) -> Facts:
    first = shards[0]
    for shard in shards[1:]:
        for key, what in (("recipe", "another model"), ("root", "another folder")):
            if getattr(shard.facts, key) != getattr(first.facts, key):
                raise UserError(f"{shard.folder}: is of {what} than {first.folder}")
    return first.facts


def _copied(shards: Sequence[Index], path: Path, count: int, dim: int) -> np.ndarray:
    """All vectors in one file, mapped."""
    with replacing(path) as temporary:
        whole_ND = open_memmap(temporary, "w+", np.float32, (count, dim))
        start = 0
        for shard in tqdm(shards, desc="vectors", unit="shard"):
            own = shard.vectors()
            for at in range(0, len(own), ADDED):
                part = own[at : at + ADDED]
                whole_ND[start + at : start + at + len(part)] = part
            start += len(own)
        whole_ND.flush()
        del whole_ND
    return np.load(path, mmap_mode="r")


def _merged(
    factory: str, shards: Sequence[Index], vectors_ND: np.ndarray, out: Path
) -> faiss.Index:
    """faiss' inverted lists of each shard in a file of its own, then all of them in one."""
    empty = trained(factory, vectors_ND)
    if not isinstance(faiss.downcast_index(empty), faiss.IndexIVF):
        raise UserError(f"--factory {factory}: has no inverted lists to merge; take IVF..., say")
    parts = out / "lists"
    parts.mkdir(exist_ok=True)
    names, start = [], 0
    for number, shard in enumerate(tqdm(shards, desc="lists", unit="shard")):
        own = faiss.clone_index(empty)
        vectors = shard.vectors()
        for at in range(0, len(vectors), ADDED):
            part = np.ascontiguousarray(vectors[at : at + ADDED])
            own.add_with_ids(part, np.arange(start + at, start + at + len(part)))
        start += len(vectors)
        names.append(str(parts / f"{number}.faiss"))
        faiss.write_index(own, names[-1])
    merge_ondisk(empty, names, str(out / LISTS))
    with replacing(out / FAISS) as temporary:
        faiss.write_index(empty, str(temporary))
    shutil.rmtree(parts)
    return empty
