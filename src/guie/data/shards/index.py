"""The index of a set of shards, a manifest in Parquet with the place of each image; and its cache.

Columns beyond those of a manifest:

| column | content |
|---|---|
| shard | file name of the tar, in the index's folder |
| offset, size | bytes of the image in it |
| content | 64-bit XXH3 of these bytes; every read is compared with it |
| pixels | `pixel_digest` of the image, where curation computed it |
| decoded | decoder version that read the image, see `guie.rows.checks`; empty: not checked |

The rows of train come first. The file's metadata has name, size and SHA-256 of each shard.

The cache has the checked table of an index, and the places of its images. Processes map both from disk, and
share their memory. Each version of an index has a folder of its own, named by size and time of the file, or
by the entity tag of the object; an object's folder has a copy of the index, too.
Shapes: N images, sorted by the hash of their image_path.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from guie.base.errors import UserError, why_unreadable
from guie.base.files import cache_folder, held, remove_own, replacing, write_json
from guie.data.names import fault_of_name
from guie.data.shards.storage import (
    Range,
    content_hash,
    read_object,
    shown,
    sizes_of,
    url_of,
    version_of,
)

NAME = "index.parquet"
PLACE = ("shard", "offset", "size", "content")
KEY = b"guie.shards"
ROWS = 1_000_000  # a row group
# What a folder keeps for a resume while its index is written
PARTS, LOCK = ".guie-parts", "lock"
OWN = ("*.tar*.parquet", "plan.json", ".*.tmp.*", LOCK)
REMEDY = "write the index again: curate.py --shards or --index-shards"
ABOUT = b"guie.about"  # key of the metadata of a table in the cache
# Companion files of an index in object storage; any manifest has the same
COMPANIONS = (".sidecar.yaml", ".relevance.csv", ".boxes.csv", ".subsets.csv", ".texts.csv")
_OPEN: dict[str, tuple[str, Places]] = {}


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
    metadata = {**(rows.schema.metadata or {}), KEY: json.dumps(facts).encode()}
    rows = rows.replace_schema_metadata(metadata)
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


class Places:
    """Where each image of an index is: arrays sorted by the hash of the image_path, mapped from disk.

    Two names with one hash are refused when the arrays are made. `hash_N` and `content_N` are uint64,
    `offset_N` and `size_N` int64, `shard_N` and `version_N` int32: positions in `shards` and `versions`.
    """

    def __init__(self, index: str, rows: pa.Table):
        self.index = index
        about = json.loads(rows.schema.metadata[ABOUT])
        self.shards = [Shard(**shard) for shard in about["shards"]]
        self.versions: list[str] = about["versions"]
        self.hash_N, self.content_N, self.offset_N, self.size_N, self.shard_N, self.version_N = (
            column.chunk(0).to_numpy() for column in rows.columns
        )
        self.checked = False

    def rows_of(self, image_paths: Sequence[str]) -> np.ndarray:
        """Return the position of each image in the arrays; -1 if the index has none of that name."""
        hashes = np.fromiter(map(_hash, image_paths), np.uint64, len(image_paths))
        found = np.searchsorted(self.hash_N, hashes)
        found[found == len(self.hash_N)] = 0
        return np.where(self.hash_N[found] == hashes, found, -1)

    def range_of(self, image_path: str) -> Range | None:
        """Return where an image is; None if the index has no such image."""
        (row,) = self.rows_of([image_path])
        if row < 0:
            return None
        shard = os.path.join(os.path.dirname(self.index), self.shards[self.shard_N[row]].name)
        offset, size, content = self.offset_N[row], self.size_N[row], self.content_N[row]
        return Range(shard, int(offset), int(size), int(content))

    def check_shards(self) -> None:
        """Raise UserError, once a process, if a shard is missing or has another size than indexed."""
        if self.checked:
            return
        folder = os.path.dirname(self.index)
        found = sizes_of(folder, [shard.name for shard in self.shards])
        wrong = [shard for shard in self.shards if found.get(shard.name) != shard.size]
        if wrong:
            first, size = wrong[0], found.get(wrong[0].name)
            is_now = "missing" if size is None else f"{size:,} bytes long"
            fault = f"{first.name} is {is_now}, and the index was written for one of {first.size:,} bytes"
            count = f"{len(wrong):,} of {len(self.shards):,} shards differ"
            raise UserError(
                f"{shown(self.index)}: {fault} ({count}); copy the shards that belong to it"
            )
        self.checked = True


def open_places(index: str) -> Places:
    """Return the places of an index, a path or a URL as a path, from the cache or written there.

    A replaced index is read again: a local one at once, one in object storage when its manifest is loaded.
    Raises UserError.
    """
    known = _OPEN.get(index)
    if known and url_of(index):
        return known[1]
    folder = cached_folder(index)
    if known and known[0] == folder.name:
        return known[1]
    path = folder / "places.arrow"
    rows = _mapped(path)
    if rows is None:
        rows = _places_of(folder / NAME if url_of(index) else Path(index), index)
        _save(path, rows)
        for other in folder.parent.iterdir():  # of earlier indexes at this place
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        rows = _mapped(path) or rows
    places = Places(index, rows)
    _OPEN[index] = folder.name, places
    return places


def cached_folder(index: str) -> Path:
    """Return the folder for what the cache holds of an index as it is now. Raises UserError."""
    if url_of(index):
        return local_copy(index).parent
    try:
        state = Path(index).stat()
    except OSError as error:
        raise UserError(f"{index}: cannot be read: {error.strerror}") from error
    return _folder_of(index) / f"{state.st_size:x}-{state.st_mtime_ns:x}"


def write_mapped(path: Path, table: pd.DataFrame, notes: list[str]) -> None:
    """Write the checked table of an index, with what is unusual about it, for `read_mapped`.

    Columns that only `Places` needs become size_bytes and mtime_ns, as those of a file.
    """
    content = table["content"].to_numpy(np.uint64) >> np.uint64(1)
    table = table.assign(size_bytes=table["size"], mtime_ns=content.astype(np.int64))
    table = table.drop(columns=["offset", "size", "content"])
    rows = pa.Table.from_pandas(table, preserve_index=False)
    plain, text = pa.types.is_primitive, pa.large_string()
    types = [kind if plain(kind) else text for kind in rows.schema.types]
    rows = rows.cast(pa.schema(zip(rows.column_names, types, strict=True)))
    _save(path, rows.replace_schema_metadata({ABOUT: json.dumps(notes)}))


def read_mapped(path: Path) -> tuple[pd.DataFrame, list[str]] | None:
    """Return what `write_mapped` wrote, mapped from disk; None if there is none. Pandas 2 copies texts."""
    rows = _mapped(path)
    if rows is None:
        return None
    return rows.to_pandas(split_blocks=True), json.loads(rows.schema.metadata[ABOUT])


def _save(path: Path, rows: pa.Table) -> None:
    with replacing(path, durable=False) as temporary, pa.OSFile(str(temporary), "wb") as file:
        with pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows.combine_chunks())


def _mapped(path: Path) -> pa.Table | None:
    """Return a table that `_save` wrote; None if it was never written, or cut short by a power cut."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowException):
        return None


def local_copy(index: str, refresh: bool = False) -> Path:
    """Return a local copy of an index in object storage, with its sidecar and companions in the same folder.

    `refresh` asks whether one of these objects has changed; else any copy will do. Raises UserError.
    """
    url = url_of(index)
    assert url is not None
    folder = _folder_of(index)
    copies = sorted(folder.glob("*/" + NAME), key=lambda file: file.stat().st_mtime_ns)
    if copies and not refresh:
        return copies[-1]
    file = folder / version_of(url) / NAME
    _copy_companions(url, file)
    if not file.is_file():
        data = read_object(url)
        # This error names the object; its readers would name the copy
        if not data.endswith(b"PAR1"):
            raise UserError(f"{url}: not a Parquet file, or cut short; {REMEDY}")
        with replacing(file) as temporary:
            temporary.write_bytes(data)
    else:
        os.utime(file)  # the newest copy
    _OPEN.pop(index, None)
    return file


def _copy_companions(url: str, file: Path) -> None:
    """Fetch the companions of an index that are new or have changed; remove copies of those that are gone."""
    note = file.with_name("companions.json")
    known = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    found = {}
    for suffix in COMPANIONS:
        source, copy = url.removesuffix(".parquet") + suffix, file.with_suffix(suffix)
        found[suffix] = version_of(source, optional=True)
        if copy.is_file() and found[suffix] == known.get(suffix):
            continue
        if found[suffix]:
            with replacing(copy) as temporary:
                temporary.write_bytes(read_object(source))
        else:
            copy.unlink(missing_ok=True)
    if found != known:
        write_json(note, found)


def _folder_of(index: str) -> Path:
    name = index if url_of(index) else os.path.realpath(index)
    key = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return cache_folder() / "shards" / key


def _hash(image_path: str) -> int:
    return content_hash(image_path.encode("utf-8", "surrogateescape"))


def _places_of(file: Path, index: str) -> pa.Table:
    """Return the arrays of `Places` as a table. Raises UserError for an index that is damaged."""
    shards: list[Shard] = read_facts(file)["shards"]
    names = pa.array([shard.name for shard in shards], pa.large_string())
    columns, versions = ["image_path", *PLACE, "decoded"], [""]
    parts = []
    with pq.ParquetFile(file) as parquet:
        missing = [column for column in columns if column not in parquet.schema_arrow.names]
        if missing:
            raise UserError(f"{shown(index)}: no column {', '.join(missing)}; {REMEDY}")
        for batch in parquet.iter_batches(columns=columns, use_threads=False):
            text = [
                batch[name].cast(pa.large_string()) for name in ("image_path", "shard", "decoded")
            ]
            image_path, shard, version = text
            shard_N = pc.index_in(shard, names)
            if shard_N.null_count:
                name = shard.filter(shard_N.is_null())[0]
                raise UserError(f"{shown(index)}: shard '{name}' is not in its list; {REMEDY}")
            version = version.fill_null("")
            versions += [name for name in version.unique().to_pylist() if name not in versions]
            place = {
                "hash": np.fromiter(map(_hash, image_path.to_pylist()), np.uint64, len(batch)),
                **{name: batch[name] for name in ("content", "offset", "size")},
                "shard": shard_N,
                "version": pc.index_in(version, pa.array(versions, pa.large_string())),
            }
            parts.append(pa.table(place))
    rows = pa.concat_tables(parts)
    rows = rows.take(np.argsort(rows["hash"].to_numpy(), kind="stable"))
    hash_N, content_N, offset_N, size_N, shard_N, _ = (column.to_numpy() for column in rows.columns)
    same = hash_N[1:] == hash_N[:-1]  # an image with two rows has one place
    for place_N in (content_N, offset_N, size_N):
        if (place_N[1:] != place_N[:-1])[same].any():
            raise UserError(f"{shown(index)}: an image is at two places; {REMEDY}")
    end_S = np.array([shard.size for shard in shards])
    if (offset_N < 0).any() or (size_N <= 0).any() or (offset_N + size_N > end_S[shard_N]).any():
        raise UserError(f"{shown(index)}: an image is outside its shard; {REMEDY}")
    about = {"shards": [asdict(shard) for shard in shards], "versions": versions}
    rows = rows.filter(pa.array(np.append(True, ~same))).combine_chunks()
    return rows.replace_schema_metadata({ABOUT: json.dumps(about)})
