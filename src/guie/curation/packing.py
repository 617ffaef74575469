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
from guie.data.manifest import OPTIONAL, REQUIRED, Manifest, load_manifest
from guie.data.manifest.companions import COLUMNS, read_companions, write_companions
from guie.data.manifest.reading import sidecar_path, write_sidecar
from guie.data.shards.claiming import claimed
from guie.data.shards.index import NAME, Shard, read_facts, shard_of, write_index
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

    def images_of(self, shard: int) -> np.ndarray:
        """Return the numbers of the images in a shard."""
        end = self.first[shard + 1] if shard + 1 < len(self.first) else None
        return self.order[self.first[shard] : end]


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
    plan = _plan(manifest, shard_bytes)
    if _is_packed(index, plan):
        write_sidecar(index, manifest.sidecar)  # it may have changed
        return index
    bad = find_unreadable(manifest.table, manifest.root, workers, manifest.open_image)
    refuse_unreadable(bad, manifest)
    with claimed(folder) as parts:
        if _is_packed(index, plan):  # by another process meanwhile
            return index
        _note_plan(index, parts / "plan.json", plan)
        for left in folder.glob(".shard-[0-9]*.tmp.tar"):  # by a process that was killed
            left.unlink()
        _refuse_small_disk(folder, plan)
        names = [f"shard-{number:06d}.tar" for number in range(len(plan.first))]
        write = partial(_write_shard, folder, parts, manifest, plan, _Rows(manifest.table, plan))
        bar = tqdm(total=len(plan.order), desc=f"pack {folder}", unit="img", disable=None)
        with bar, ThreadPoolExecutor(workers) as pool:
            written = [pool.submit(write, number, name) for number, name in enumerate(names)]
            try:
                for one in written:
                    bar.update(one.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        _write_index(index, manifest, plan, parts, names)
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
    first, room = [], -1
    for position, size in enumerate((sizes[order] + SAMPLE_BYTES).tolist()):
        room -= size
        if room < 0:
            first.append(position)
            room = shard_bytes - size
    digest = hashlib.sha256(f"{shard_bytes} {_rows_digest(manifest)}".encode())
    digest.update(np.stack([sizes, known.time_N], axis=1).tobytes())
    return Plan(image_paths, image_of_row, sizes, order, np.array(first), digest.hexdigest())


def _rows_digest(manifest: Manifest) -> str:
    columns = [c for c in (*REQUIRED, *OPTIONAL) if c in manifest.table]
    values = pd.util.hash_pandas_object(manifest.table[columns].astype(str), index=False)
    return hashlib.sha256(values.to_numpy().tobytes()).hexdigest()


def _note_plan(index: Path, note: Path, plan: Plan) -> None:
    """Note the plan of the shards in a folder. Raises UserError if it has other files of such names."""
    folder = index.parent
    if note.exists():
        known = read_json(note, f"delete {folder}").get("digest")
    else:
        known = None if any(folder.glob("[!.]*.tar")) else plan.digest
        named = [sidecar_path(index), *(index.with_suffix(f".{kind}.csv") for kind in COLUMNS)]
        if standing := [path for path in named if os.path.lexists(path)]:
            raise UserError(f"{standing[0]}: would be replaced; write elsewhere, or move that file")
        if known:
            write_json(note, {"digest": plan.digest})
    if known != plan.digest:
        raise UserError(
            f"{folder}: has shards of another manifest, of changed images or another --shard-mb; write"
            " elsewhere, or delete that folder"
        )


def _refuse_small_disk(folder: Path, plan: Plan) -> None:
    done = sum(path.stat().st_size for path in folder.glob("shard-*.tar"))
    needed = int(plan.sizes.sum()) + len(plan.sizes) * SAMPLE_BYTES - done
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: the shards need {needed:,} bytes, and the disk has {free:,} free; free some"
            " space, or write elsewhere"
        )


def _write_shard(
    folder: Path, parts: Path, manifest: Manifest, plan: Plan, rows: _Rows, number: int, name: str
) -> int:
    """Write a shard unless it is there, whole; return the number of its images."""
    images, part = plan.images_of(number), parts / f"{name}.parquet"
    if part.exists():
        size = pd.read_parquet(part, columns=["shard_size"])["shard_size"].iloc[0]
        if sizes_of(str(folder), [name]).get(name) == size:
            return len(images)
    part.unlink(missing_ok=True)
    records = rows.of(images)
    places = []
    with replacing(folder / name) as temporary:
        with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
            for image in images.tolist():
                image_path = plan.image_paths[image]
                data = _bytes_of(str(manifest.root / image_path))
                if len(data) != plan.sizes[image]:
                    raise UserError(
                        f"{manifest.root / image_path}: changed while it was packed; delete {folder}"
                        " and pack again"
                    )
                suffix = Path(image_path).suffix.lower() or ".img"
                offset = _add(tar, f"{image:09d}{suffix}", data)
                _add(tar, f"{image:09d}.json", _as_json(records[image]))
                places.append((image, offset, len(data), content_hash(data)))
        shard = shard_of(temporary, name)
    table = pd.DataFrame(places, columns=["image", "offset", "size", "content"])
    table["content"] = table["content"].astype(np.uint64)
    with replacing(part) as temporary:
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
    if in_shard is not None:
        return in_shard.getvalue()
    return Path(path).read_bytes()


class _Rows:
    """The rows of a manifest by image; an image may have two, see `index_is_train`."""

    def __init__(self, table: pd.DataFrame, plan: Plan):
        self.table = table[[c for c in (*REQUIRED, *OPTIONAL) if c in table]]
        self.image_of_row = plan.image_of_row
        self.by_image = np.argsort(plan.image_of_row, kind="stable")
        numbers = np.arange(len(plan.image_paths) + 1)
        self.first = np.searchsorted(plan.image_of_row[self.by_image], numbers)

    def of(self, images: np.ndarray) -> dict[int, list[dict[str, Any]]]:
        """Return the rows of each of these images as records."""
        chosen = [self.by_image[self.first[image] : self.first[image + 1]] for image in images]
        row_R = np.concatenate(chosen)
        records: dict[int, list[dict[str, Any]]] = {}
        rows = self.table.iloc[row_R].to_dict("records")
        for image, row in zip(self.image_of_row[row_R].tolist(), rows, strict=True):
            records.setdefault(image, []).append(row)
        return records


def _as_json(rows: list[dict[str, Any]]) -> bytes:
    """Return the image's row, and further rows under `rows`, without empty values."""
    cleaned = [{k: v for k, v in row.items() if v != "" and not pd.isna(v)} for row in rows]
    whole = {**cleaned[0], **({"rows": cleaned[1:]} if len(cleaned) > 1 else {})}
    return json.dumps(whole, ensure_ascii=False, default=lambda value: value.item()).encode()


def _write_index(
    index: Path, manifest: Manifest, plan: Plan, parts: Path, names: list[str]
) -> None:
    tables = [pd.read_parquet(parts / f"{name}.parquet") for name in names]
    shards = [
        Shard(one["shard_name"], int(one["shard_size"]), one["shard_sha256"])
        for one in (table.iloc[0] for table in tables)
    ]
    places = pd.concat(tables).set_index("image").sort_index()
    found = places.iloc[plan.image_of_row]
    columns = [c for c in (*REQUIRED, *OPTIONAL, "pixels") if c in manifest.table]
    table = manifest.table[columns].assign(
        shard=found["shard_name"].to_numpy(),
        offset=found["offset"].to_numpy(),
        size=found["size"].to_numpy(),
        content=found["content"].to_numpy(),
        decoded=VERSION,
    )
    write_companions(index, read_companions(manifest.path))
    write_sidecar(index, manifest.sidecar)
    write_index(index, table, shards, plan=plan.digest)
