"""The index of a set of shards: a manifest in Parquet with the place of each image.

Columns beyond those of a manifest:

| column | content |
|---|---|
| shard | file name of the tar, in the index's folder |
| offset, size | bytes of the image in it |
| content | 64-bit XXH3 of these bytes; every read is compared with it |
| pixels | `pixel_digest` of the image, where curation computed it |
| decoded | decoder version that read the image, see `guie.rows.checks`; empty: not checked |

The rows of train come first. The file's metadata has name, size and SHA-256 of each shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from guie.base.errors import UserError, why_unreadable
from guie.base.files import held, remove_own, replacing
from guie.data.archives import fault_of_name

NAME = "index.parquet"
PLACE = ("shard", "offset", "size", "content")
KEY = b"guie.shards"
ROWS = 1_000_000  # a row group
# What a folder keeps for a resume while its index is written
PARTS, LOCK = ".guie-parts", "lock"
OWN = ("*.tar*.parquet", "plan.json", ".*.tmp.*", LOCK)
REMEDY = "write the index again: curate.py --shards or --index-shards"


@dataclass(frozen=True)
class Shard:
    """A tar file of a set; its name is relative to the index."""

    name: str
    size: int
    sha256: str


def shard_of(tar: Path, name: str) -> Shard:
    """Return what the index says of a tar file of that name."""
    with tar.open("rb") as file:
        return Shard(name, tar.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write_index(path: Path, table: pd.DataFrame, shards: Sequence[Shard], **about: Any) -> None:
    """Write an index atomically; `about` is kept in its metadata as JSON."""
    # Train first: a training maps its rows, and copies none.
    table = table.sort_values("split", key=lambda split: split != "train", kind="stable")
    table = table.assign(
        shard=table["shard"].astype("category"),
        content=table["content"].astype(np.uint64),
        decoded=table["decoded"].astype("category"),
    )
    rows = pa.Table.from_pandas(table, preserve_index=False)
    facts = {"version": 1, "shards": [asdict(shard) for shard in shards], **about}
    rows = rows.replace_schema_metadata(
        {**(rows.schema.metadata or {}), KEY: json.dumps(facts).encode()}
    )
    with replacing(path) as temporary:
        pq.write_table(rows, temporary, row_group_size=ROWS, compression="zstd")


def read_facts(path: Path) -> dict[str, Any]:
    """Return the metadata of an index. Raises UserError if it is none of ours, or shards climb out."""
    try:
        facts = json.loads((pq.read_schema(path).metadata or {})[KEY])
        shards = [Shard(**shard) for shard in facts["shards"]]
    except FileNotFoundError:
        raise UserError(why_unreadable(path, "index") or f"{path}: no such index") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not an index of shards; {REMEDY}") from None
    for shard in shards:
        if fault := fault_of_name(shard.name):
            raise UserError(f"{path}: shard {shard.name!r}: {fault}; {REMEDY}")
    return {**facts, "shards": shards}


def is_index(path: Path) -> bool:
    """Return whether a manifest is an index, by its columns."""
    if path.suffix != ".parquet":
        return False
    try:
        return set(PLACE) <= set(pq.read_schema(path).names)
    except (OSError, pa.ArrowException):  # reading the manifest says what is wrong
        return False


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Lock a folder, and yield its subfolder for what is known so far, which is deleted at the end.

    It stays after a failure, so that the same command resumes. A user's files in it always stay.
    Raises UserError if another process writes to the folder, or somebody else made the subfolder.
    """
    parts = folder / PARTS
    made = parts.is_dir() and any(parts.iterdir())
    if parts.is_symlink() or (made and not (parts / LOCK).is_file()):
        raise UserError(f"{parts}: not made by curate.py, which needs this name; rename it")
    with held(parts / LOCK, f"{folder}: another process writes its index", "wait for it"):
        yield parts
        remove_own(parts, OWN)
