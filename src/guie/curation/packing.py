"""Write the images of a manifest into shards: plain tars by WebDataset's convention, with one index.

A sample is `000000017.jpg`, the file as it was, and `000000017.json`, its row of the manifest. So any tool
reads the tars, and `curate.py --index-shards` could write the index again. Images are packed in random
order: then a few neighbouring shards are a fair sample, which `sampler: shards` needs.

The plan (which image is in which shard) depends only on the manifest, the files' sizes and the shard size. A
shard is complete or absent, and the same command resumes after an interruption.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import read_json, replacing, write_json
from guie.config.data import MixConfig
from guie.data.manifest import NUMBERS, OPTIONAL, REQUIRED, Manifest, load_manifest
from guie.data.manifest.companions import COLUMNS, read_companions, write_companions
from guie.data.manifest.reading import sidecar_path, write_sidecar
from guie.data.shards.claiming import claimed
from guie.data.shards.index import NAME, PLACE, Shard, read_facts, shard_of, write_index
from guie.data.shards.opening import open_in_shard
from guie.data.shards.storage import content_hash, sizes_of
from guie.rows.checks import VERSION
from guie.rows.readable import find_unreadable, refuse_unreadable
from guie.rows.states import states

SEED = 0  # of the order of the images
SAMPLE_BYTES = 2 * tarfile.BLOCKSIZE + 1024  # two headers, and a usual row as JSON


class Plan(NamedTuple):
    """Which image is in which shard: numbers of images in the order of packing, cut at `first`."""

    image_paths: np.ndarray  # each once, in the manifest's order
    image_of_row: np.ndarray  # the number of the image of each row of the manifest
    sizes: np.ndarray  # bytes of each
    order: np.ndarray
    first: np.ndarray  # of each shard: its first position in `order`
    digest: str


def pack_mix(
    config: MixConfig, table: pd.DataFrame, folder: Path, shard_bytes: int, workers: int
) -> Path:
    """Write the shards of a mix that is saved, as `pack` does, with the pixel digests of its cleaning."""
    manifest = load_manifest(config.out, config.image_root)
    if "pixels" in table:
        rows = manifest.table.assign(pixels=table["pixels"].to_numpy())
        manifest = replace(manifest, table=rows)
    return pack(manifest, folder, shard_bytes, workers)


def pack(manifest: Manifest, folder: Path, shard_bytes: int, workers: int) -> Path:
    """Write shards and their index into a folder, or resume a stopped packing; return the index.

    Args:
        manifest: its images are decoded first, if they were not before.
        shard_bytes: of a shard, at most; a single larger image has a shard of its own.
        workers: shards written at once.

    Raises:
        UserError: the folder has shards of another manifest, an image is missing, unreadable or changes,
            or the disk is full. Shards that are complete stay.
    """
    index = folder / NAME
    table = manifest.table
    numbers = table.columns.intersection(NUMBERS)  # a CSV's are text
    table = table.assign(**table[numbers].apply(pd.to_numeric, errors="coerce"))
    manifest = replace(manifest, table=table)
    plan = _plan(manifest, shard_bytes)
    if _is_packed(index, plan):
        write_sidecar(index, manifest.sidecar)  # it may have changed
        return index
    bad = find_unreadable(manifest.table, manifest.root, workers, manifest.open_image)
    refuse_unreadable(bad, manifest)
    with claimed(folder) as scratch:
        if _is_packed(index, plan):  # by another process meanwhile
            return index
        _note_plan(index, scratch / "plan.json", plan)
        for left in folder.glob(".shard-[0-9]*.tmp.tar"):  # by a process that was killed
            left.unlink()
        done = sum(path.stat().st_size for path in folder.glob("shard-*.tar"))
        needed = int(plan.sizes.sum()) + len(plan.sizes) * SAMPLE_BYTES - done
        if needed > (free := shutil.disk_usage(folder).free):
            raise UserError(
                f"{folder}: the shards need {needed:,} bytes, and the disk has {free:,} free; free some"
                " space, or write elsewhere"
            )
        names = [f"shard-{number:06d}.tar" for number in range(len(plan.first))]
        images = np.split(plan.order, plan.first[1:])
        write = partial(_write_shard, folder, scratch, manifest, plan, _Records(manifest, plan))
        bar = tqdm(total=len(plan.order), desc=f"pack {folder}", unit="img", disable=None)
        with bar, ThreadPoolExecutor(workers) as pool:
            written = [pool.submit(write, *shard) for shard in zip(names, images, strict=True)]
            try:
                for one in written:
                    bar.update(one.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        _write_index(index, manifest, plan, [scratch / f"{name}.parquet" for name in names])
    return index


def _is_packed(index: Path, plan: Plan) -> bool:
    """Return whether the index is there. Raises UserError for another plan, or a shard that is not whole."""
    if not index.exists():
        return False
    facts = read_facts(index)
    if facts.get("plan") != plan.digest:
        raise UserError(
            f"{index}: is the index of another manifest, of changed images or another --shard-mb;"
            " write elsewhere, or delete that folder"
        )
    found = sizes_of(str(index.parent), [shard.name for shard in facts["shards"]])
    if wrong := [shard.name for shard in facts["shards"] if found.get(shard.name) != shard.size]:
        raise UserError(
            f"{index.parent}: {wrong[0]} is missing or damaged ({len(wrong):,} of {len(facts['shards']):,}"
            " shards are); delete that folder, and pack again"
        )
    return True


def _plan(manifest: Manifest, shard_bytes: int) -> Plan:
    image_of_row, image_paths = pd.factorize(manifest.table["image_path"].to_numpy(object))
    known = states(manifest.root, image_paths, by_content=False)
    sizes = known.size_N
    if (gone := sizes <= 0).any():
        first = image_paths[gone.argmax()]
        raise UserError(
            f"{manifest.path}: {int(gone.sum()):,} images are missing or empty, first {first}; is"
            f" {manifest.root} the folder that image_path starts from?"
        )
    order = np.random.default_rng(SEED).permutation(len(image_paths))
    starts, room = [], -1
    for position, size in enumerate((sizes[order] + SAMPLE_BYTES).tolist()):
        room -= size
        if room < 0:
            starts.append(position)
            room = shard_bytes - size
    rows = manifest.table[_columns(manifest)].astype(str)
    row_hashes = pd.util.hash_pandas_object(rows, index=False).to_numpy()
    of_rows = hashlib.sha256(row_hashes.tobytes()).hexdigest()
    digest = hashlib.sha256(f"{shard_bytes} {of_rows}".encode())
    digest.update(np.stack([sizes, known.time_N], axis=1).tobytes())
    return Plan(image_paths, image_of_row, sizes, order, np.array(starts), digest.hexdigest())


def _columns(manifest: Manifest) -> list[str]:
    return [name for name in (*REQUIRED, *OPTIONAL) if name in manifest.table]


def _note_plan(index: Path, note: Path, plan: Plan) -> None:
    """Note the plan of the shards in a folder. Raises UserError if it has other files of such names."""
    folder = index.parent
    if note.exists():
        known = read_json(note, f"delete {folder}").get("digest")
    else:
        known = None if any(folder.glob("[!.]*.tar")) else plan.digest
        results = [sidecar_path(index), *(index.with_suffix(f".{kind}.csv") for kind in COLUMNS)]
        if taken := [path for path in results if os.path.lexists(path)]:
            raise UserError(f"{taken[0]}: would be replaced; write elsewhere, or move that file")
        if known:
            write_json(note, {"digest": plan.digest})
    if known != plan.digest:
        raise UserError(
            f"{folder}: has shards of another manifest, of changed images or another --shard-mb; write"
            " elsewhere, or delete that folder"
        )


class _Records:
    """The rows of a manifest by image; an image may have two, see `index_is_train`."""

    def __init__(self, manifest: Manifest, plan: Plan):
        self.table, self.image_of_row = manifest.table[_columns(manifest)], plan.image_of_row
        self.by_image = np.argsort(plan.image_of_row, kind="stable")
        numbers = np.arange(len(plan.image_paths) + 1)
        self.first = np.searchsorted(plan.image_of_row[self.by_image], numbers)

    def as_json(self, images: np.ndarray) -> dict[int, bytes]:
        """Return each image's row, and further rows under `rows`, without empty values."""
        chosen = [self.by_image[self.first[image] : self.first[image + 1]] for image in images]
        row_R = np.concatenate(chosen)
        records: dict[int, list[dict[str, Any]]] = defaultdict(list)
        rows = self.table.iloc[row_R].to_dict("records")
        for image, row in zip(self.image_of_row[row_R].tolist(), rows, strict=True):
            records[image].append({k: v for k, v in row.items() if v != "" and not pd.isna(v)})
        written = {}
        for image, (first, *more) in records.items():
            whole = {**first, "rows": more} if more else first
            text = json.dumps(whole, ensure_ascii=False, default=lambda value: value.item())
            written[image] = text.encode()
        return written


def _write_shard(
    folder: Path,
    scratch: Path,
    manifest: Manifest,
    plan: Plan,
    records: _Records,
    name: str,
    images: np.ndarray,
) -> int:
    """Write a shard unless it is there, whole; return the number of its images."""
    known = scratch / f"{name}.parquet"
    if known.exists():
        size = pd.read_parquet(known, columns=["shard_size"])["shard_size"].iloc[0]
        if sizes_of(str(folder), [name]).get(name) == size:
            return len(images)
    known.unlink(missing_ok=True)
    places, rows = [], records.as_json(images)
    with replacing(folder / name) as temporary:
        with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
            for image in images.tolist():
                path = manifest.root / plan.image_paths[image]
                data = _bytes_of(str(path))
                if len(data) != plan.sizes[image]:
                    raise UserError(
                        f"{path}: changed while it was packed; delete {folder} and pack again"
                    )
                offset = _add(tar, f"{image:09d}{path.suffix.lower() or '.img'}", data)
                _add(tar, f"{image:09d}.json", rows[image])
                places.append((image, offset, len(data), content_hash(data)))
        shard = shard_of(temporary, name)
    table = pd.DataFrame(places, columns=["image", "offset", "size", "content"])
    table["content"] = table["content"].astype(np.uint64)
    with replacing(known) as temporary:
        table.assign(**{f"shard_{k}": v for k, v in asdict(shard).items()}).to_parquet(temporary)
    return len(images)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Add a file to a tar; return the offset of its bytes. The same files make the same tar."""
    header = tarfile.TarInfo(name)
    header.size = len(data)
    offset = tar.offset + tarfile.BLOCKSIZE
    tar.addfile(header, io.BytesIO(data))
    return offset


def _bytes_of(path: str) -> bytes:
    in_shard = open_in_shard(path)
    return Path(path).read_bytes() if in_shard is None else in_shard.getvalue()


def _write_index(index: Path, manifest: Manifest, plan: Plan, known: Sequence[Path]) -> None:
    """Write the index, from the table of each shard."""
    tables = [pd.read_parquet(path) for path in known]
    shards = [
        Shard(one["shard_name"], int(one["shard_size"]), one["shard_sha256"])
        for one in (table.iloc[0] for table in tables)
    ]
    places = pd.concat(tables).set_index("image").sort_index()
    found = places.iloc[plan.image_of_row].rename(columns={"shard_name": "shard"})
    columns = [*_columns(manifest), *(["pixels"] if "pixels" in manifest.table else [])]
    table = manifest.table[columns].assign(
        **{name: found[name].to_numpy() for name in PLACE}, decoded=VERSION
    )
    write_companions(index, read_companions(manifest.path))
    write_sidecar(index, manifest.sidecar)
    write_index(index, table, shards, plan=plan.digest)
