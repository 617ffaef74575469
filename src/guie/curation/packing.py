"""Write the images of a manifest into shards: plain tars by WebDataset's convention, with one index.

A sample is `000000017.jpg`, the file as it was, and `000000017.json`, its row of the manifest. So any tool
reads the tars, and `curate.py --index-shards` could write the index again. Images are packed in random
order: then a few neighbouring shards are a fair sample, which `sampler: shards` needs.

The plan (which image is in which shard) depends only on the manifest, the files' sizes and the shard size. A
shard is complete or absent, and the same command resumes after an interruption.
"""

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.config.data import MixConfig
from guie.data.manifest import NUMBERS, OPTIONAL, REQUIRED, Manifest, load_manifest
from guie.data.manifest.companions import COLUMNS, read_companions, write_companions
from guie.data.manifest.reading import sidecar_path, write_sidecar
from guie.data.shards.index import NAME, PLACE, Shard, claimed, read_facts, shard_of, write_index
from guie.data.shards.opening import open_in_shard
from guie.data.shards.storage import content_hash, sizes_of
from guie.rows.checks import VERSION, find_unreadable, refuse_unreadable
from guie.rows.states import states

SEED = 0  # of the order of the images
SAMPLE_BYTES = 2 * tarfile.BLOCKSIZE + 1024  # two headers, and a usual row as JSON


class Plan(NamedTuple):
    """Which image is in which shard."""

    # Of the manifest, with `image`, the number of its image; one may have two rows
    rows: pd.DataFrame
    images: pd.DataFrame  # image, image_path, bytes, shard (a file name), in the order of packing
    digest: str

    def table_of(self, scratch: Path, shard: str) -> Path:
        """Return the file of the places in a shard, which is there once the shard is."""
        return scratch / f"{shard}.{self.digest[:16]}.parquet"


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

    Images are decoded first, if they were not before. One larger than `shard_bytes` has a shard of its own.

    Raises UserError if the folder has shards of another manifest, an image is missing, unreadable or changes,
    or the disk is full. Shards that are complete stay.
    """
    index, plan = folder / NAME, _plan(manifest, shard_bytes)
    if not _is_packed(index, plan):
        bad = find_unreadable(manifest.table, manifest.root, workers, manifest.sidecar.decode)
        refuse_unreadable(bad, manifest)
        with claimed(folder) as scratch:
            if not _is_packed(index, plan):  # by another process meanwhile
                _refuse_folder(folder, scratch, plan)
                tables = [*_write_shards(folder, scratch, manifest, plan, workers)]
                write_companions(index, read_companions(manifest.path))
                write_sidecar(index, manifest.sidecar)
                _write_index(index, plan, pd.concat(tables, ignore_index=True))
    write_sidecar(index, manifest.sidecar)  # it may have changed
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
    table = manifest.table
    columns = [name for name in (*REQUIRED, *OPTIONAL) if name in table]
    numbers = [name for name in columns if name in NUMBERS]  # a CSV's are text
    rows = table.assign(**table[numbers].apply(pd.to_numeric, errors="coerce"))
    image_of_row, paths = pd.factorize(rows["image_path"].to_numpy(object))
    known = states(manifest.root, paths, by_content=False)
    if (gone := known.size_N <= 0).any():
        raise UserError(
            f"{manifest.path}: {int(gone.sum()):,} images are missing or empty, first"
            f" {paths[gone.argmax()]}; is {manifest.root} the folder that image_path starts from?"
        )
    order = np.random.default_rng(SEED).permutation(len(paths))
    names, number, room = [], -1, -1
    for size in (known.size_N[order] + SAMPLE_BYTES).tolist():
        room -= size
        if room < 0:
            number, room = number + 1, shard_bytes - size
        names.append(f"shard-{number:06d}.tar")
    images = pd.DataFrame({"image": order, "image_path": paths[order]})
    images = images.assign(bytes=known.size_N[order], shard=names)
    row_hashes = pd.util.hash_pandas_object(rows[columns].astype(str), index=False).to_numpy()
    of_rows = hashlib.sha256(row_hashes.tobytes()).hexdigest()
    digest = hashlib.sha256(f"{shard_bytes} {of_rows}".encode())
    digest.update(np.stack([known.size_N, known.time_N], axis=1).tobytes())
    kept = rows[[*columns, *(["pixels"] if "pixels" in rows else [])]]
    return Plan(kept.assign(image=image_of_row), images, digest.hexdigest())


def _refuse_folder(folder: Path, scratch: Path, plan: Plan) -> None:
    """Raise UserError if a folder has other shards, files of the index's names, or too small a disk."""
    shards = plan.images["shard"].unique()
    ours = {name for name in shards if plan.table_of(scratch, name).exists()}
    if {path.name for path in folder.glob("[!.]*.tar")} - ours:
        raise UserError(
            f"{folder}: has shards of another manifest, of changed images or another --shard-mb; write"
            " elsewhere, or delete that folder"
        )
    index = folder / NAME
    results = [sidecar_path(index), *(index.with_suffix(f".{kind}.csv") for kind in COLUMNS)]
    if not ours and (taken := [path for path in results if os.path.lexists(path)]):
        raise UserError(f"{taken[0]}: would be replaced; write elsewhere, or move that file")
    for left in folder.glob(".shard-[0-9]*.tmp.tar"):  # by a process that was killed
        left.unlink()
    done = sum(path.stat().st_size for path in folder.glob("shard-*.tar"))
    needed = int(plan.images["bytes"].sum()) + len(plan.images) * SAMPLE_BYTES - done
    if needed > (free := shutil.disk_usage(folder).free):
        raise UserError(
            f"{folder}: the shards need {needed:,} bytes, and the disk has {free:,} free; free some"
            " space, or write elsewhere"
        )


def _write_shards(
    folder: Path, scratch: Path, manifest: Manifest, plan: Plan, workers: int
) -> Iterator[pd.DataFrame]:
    """Write the shards that are not there, several at once; yield the table of each in turn."""
    shard_of_image = plan.images.set_index("image")["shard"]
    rows = plan.rows.groupby(shard_of_image[plan.rows["image"]].to_numpy())

    def write(shard: str, images: pd.DataFrame) -> pd.DataFrame:
        known = plan.table_of(scratch, shard)
        if known.exists():
            table = pd.read_parquet(known)
            if sizes_of(str(folder), [shard]).get(shard) == table["shard_size"].iloc[0]:
                return table
        records = _as_json(rows.get_group(shard))
        with replacing(folder / shard) as temporary:
            places = _write_tar(temporary, manifest.root, images, records)
            about = asdict(shard_of(temporary, shard))
            table = places.assign(**{f"shard_{key}": value for key, value in about.items()})
            with replacing(known) as file:
                table.to_parquet(file)
        return table

    bar = tqdm(total=len(plan.images), desc=f"pack {folder}", unit="img", disable=None)
    with bar, ThreadPoolExecutor(workers) as pool:
        written = [pool.submit(write, shard, own) for shard, own in plan.images.groupby("shard")]
        try:
            for one in written:
                bar.update(len(one.result()))
                yield one.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _as_json(rows: pd.DataFrame) -> dict[int, bytes]:
    """Return each image's row, and further rows under `rows`, without empty values."""
    records: dict[int, dict[str, Any]] = {}
    values = rows.drop(columns=["image", "pixels"], errors="ignore").to_dict("records")
    for image, row in zip(rows["image"].tolist(), values, strict=True):
        row = {k: v for k, v in row.items() if v != "" and not pd.isna(v)}
        if image in records:
            records[image].setdefault("rows", []).append(row)
        else:
            records[image] = row
    to_json = partial(json.dumps, ensure_ascii=False, default=lambda value: value.item())
    return {image: to_json(row).encode() for image, row in records.items()}


def _write_tar(
    tar_path: Path, root: Path, images: pd.DataFrame, records: dict[int, bytes]
) -> pd.DataFrame:
    """Write images and their rows; return the place and hash of each. The same files make the same tar."""
    places = []
    with tarfile.open(tar_path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for image in images.itertuples():
            path = root / image.image_path
            in_shard = open_in_shard(str(path))
            data = path.read_bytes() if in_shard is None else in_shard.getvalue()
            if len(data) != image.bytes:
                raise UserError(
                    f"{path}: changed while it was packed; delete {tar_path.parent} and pack again"
                )
            name, suffix = f"{image.image:09d}", path.suffix.lower() or ".img"
            offset = tar.offset + tarfile.BLOCKSIZE
            members = {f"{name}{suffix}": data, f"{name}.json": records[image.image]}
            for member, content in members.items():
                header = tarfile.TarInfo(member)
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))
            places.append((image.image, offset, len(data), content_hash(data)))
    table = pd.DataFrame(places, columns=["image", "offset", "size", "content"])
    return table.astype({"content": np.uint64})


def _write_index(index: Path, plan: Plan, places: pd.DataFrame) -> None:
    """Write the index: the manifest's rows with the place of each image."""
    facts = places[["shard_name", "shard_size", "shard_sha256"]].drop_duplicates("shard_name")
    shards = [Shard(row[0], int(row[1]), row[2]) for row in facts.itertuples(index=False)]
    places = places.set_index("image").rename(columns={"shard_name": "shard"})
    found = places.loc[plan.rows["image"]]
    table = plan.rows.drop(columns="image").assign(
        **{name: found[name].to_numpy() for name in PLACE}, decoded=VERSION
    )
    write_index(index, table, shards, plan=plan.digest)
