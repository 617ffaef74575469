"""Write the index of existing WebDataset tars, which stay as they are.

Members of one key, the name up to the first dot, are a sample: an image, and what is known of it.

| member | used as |
|---|---|
| `.jpg` and other images | an image; its image_path is `<name of the tar>/<member>` |
| `.cls` | the class |
| `.json` | the class under `label`, a `caption`; a row that `packing` wrote is read as a whole |
| `.txt` | the caption |

Without a `.cls` or a label, the folder of the key is the class, as in `n01440764/n01440764_10026.jpg`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from guie.base.errors import UserError, why_unreadable
from guie.base.files import refuse_foreign_list, replacing
from guie.data.archives import (
    Limits,
    damage_as_user_error,
    fault_of_all,
    fault_of_member,
    of_tar,
    refuse_cut_short,
)
from guie.data.datasets.base import IMAGE_SUFFIXES
from guie.data.image_checks.decoding import VERSION, mapped
from guie.data.images import check_bytes
from guie.data.manifest import OPTIONAL, REQUIRED, check
from guie.data.manifest.reading import read_sidecar
from guie.data.shards.claiming import claimed
from guie.data.shards.index import NAME, Shard, shard_of, write_index
from guie.data.shards.storage import content_hash

DROPPED = "index.dropped.csv"
LISTED = ["image_path", "reason"]  # its columns
SUFFIXES = (".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
COLUMNS = [*REQUIRED, *OPTIONAL, "shard", "offset", "size", "content", "reason"]
SHOWN = 20  # illegal rows that are named
NUMBERS = ("width", "height", "weight")
LARGEST = 2**53  # of a number in JSON, so that a column of float64 holds it


class Indexed(NamedTuple):
    """What `index_tars` wrote."""

    path: Path
    images: int
    shards: int
    dropped: pd.DataFrame  # image_path, reason


def index_tars(folder: Path, domain: str, split: str, workers: int) -> Indexed:
    """Write `index.parquet` of the tars in a folder; images that cannot be decoded are left out, and listed.

    Each tar is read once, and its part of the index is kept until the index is written.

    Args:
        domain, split: of all images, except those that say so in their JSON.

    Raises:
        UserError: no tar, an index is there already, another process writes one, a tar is damaged or
            compressed, a member is not safe or occurs twice, an image has no class, rows are illegal in a
            manifest, or a file that is not ours would be replaced.
    """
    if why := why_unreadable(folder, "folder"):
        raise UserError(why)
    tars = sorted(path for path in folder.glob("[!.]*.tar*") if path.name.endswith(SUFFIXES))
    if not tars:
        raise UserError(f"{folder}: no .tar in it")
    with claimed(folder) as parts:
        return _index_all(folder, parts, tars, domain, split, workers)


def _index_all(
    folder: Path, known: Path, tars: list[Path], domain: str, split: str, workers: int
) -> Indexed:
    index = folder / NAME
    if os.path.lexists(index):
        raise UserError(f"{index}: exists; delete it to index these tars again")
    refuse_foreign_list(folder / DROPPED, LISTED)
    asked = hashlib.sha256(repr([domain, split, VERSION]).encode()).hexdigest()[:8]
    parts = [known / f"{tar.name}.{_state(tar)}.{asked}.parquet" for tar in tars]
    todo = [pair for pair in zip(tars, parts, strict=True) if not pair[1].exists()]
    for _ in mapped(partial(_index_tar, domain, split), todo, workers, chunk=1):
        pass
    tables = [pd.read_parquet(part) for part in parts]
    everything = pd.concat(tables, ignore_index=True)
    if everything.empty:
        raise UserError(
            f"{folder}: no member of its tars has the name of an image, such as 0001.jpg; is this the"
            " right folder?"
        )
    everything = everything.dropna(axis="columns", how="all")
    for column in set(everything) - {"width", "height", "weight", "offset", "size", "content"}:
        everything[column] = everything[column].astype(object).fillna("").astype(str)
    dropped = everything.loc[everything["reason"] != "", LISTED]
    table = everything[everything["reason"] == ""].reset_index(drop=True)
    if table.empty:
        raise UserError(f"{folder}: none of {len(everything):,} images in its tars can be decoded")
    shards = [
        Shard(tar.name, tar.stat().st_size, one["shard_sha256"].iloc[0])
        for tar, one in zip(tars, tables, strict=True)
        if len(one)
    ]
    table = table.drop(columns=["shard_sha256", "reason"]).assign(decoded=VERSION)
    faults = check(table, read_sidecar(index), range(len(table)), "row")
    if faults:
        places = table["shard"] + ": " + table["image_path"]
        lines = [f"{folder}/{places[row]}: {what}" for row, what in faults[:SHOWN]]
        raise UserError("\n".join([*lines, f"{folder}: {len(faults):,} images cannot be indexed"]))
    (folder / DROPPED).unlink(missing_ok=True)
    if len(dropped):
        with replacing(folder / DROPPED) as temporary:
            dropped.to_csv(temporary, index=False)
    write_index(index, table, shards)
    return Indexed(index, len(table), len(shards), dropped)


def _state(tar: Path) -> str:
    known = tar.stat()
    return f"{known.st_size:x}-{known.st_mtime_ns:x}"


def _index_tar(domain: str, split: str, pair: tuple[Path, Path]) -> None:
    """Write the part of the index about one tar. Raises UserError."""
    tar, part = pair
    table = pd.DataFrame(_rows_of(tar, domain, split), columns=COLUMNS)
    table["content"] = table["content"].astype(np.uint64)
    with replacing(part) as temporary:
        table.assign(shard_sha256=shard_of(tar, tar.name).sha256).to_parquet(temporary)


def _rows_of(tar: Path, domain: str, split: str) -> Iterator[dict[str, Any]]:
    samples: dict[str, _Sample] = {}
    members, limits = [], Limits()
    with damage_as_user_error(tar), _opened(tar) as file:
        for entry in file:
            member = of_tar(entry)
            members.append(member)
            if fault := fault_of_member(member, limits):
                raise UserError(f"{tar}: {member.name!r}: {fault}")
            if member.kind != "file" or entry.issparse():
                continue
            key, suffix = _parted(str(member.path))
            content = file.extractfile(entry)
            assert content is not None  # None only for what is no file
            sample = samples.setdefault(key, _Sample({}, []))
            if f".{suffix.rpartition('.')[2]}" in IMAGE_SUFFIXES:
                data = content.read()
                sample.images.append(
                    {
                        "name": str(member.path),
                        "offset": entry.offset_data,
                        "size": entry.size,
                        "content": content_hash(data),
                        "reason": _why_not(data),
                    }
                )
            elif suffix in ("cls", "json", "txt"):
                sample.about[suffix] = content.read()
        refuse_cut_short(file)
    if fault := fault_of_all(members):
        raise UserError(f"{tar}: {fault}")
    for key, sample in samples.items():
        for image in sample.images:
            for row in _rows_of_image(tar, key, sample.about, image, domain, split):
                if not _is_unicode(row):
                    raise UserError(f"{tar}: {image['name']!r}: its name or row is not in UTF-8")
                yield row


class _Sample(NamedTuple):
    """Members of one key."""

    about: dict[str, bytes]  # by suffix
    images: list[dict[str, Any]]


def _opened(tar: Path) -> tarfile.TarFile:
    if tar.suffix != ".tar":
        raise UserError(
            f"{tar}: is compressed, and byte ranges need a plain tar; unpack it: gunzip or zstd -d"
        )
    return tarfile.open(tar, "r:")


def _parted(name: str) -> tuple[str, str]:
    """Return key and suffix of a member as WebDataset parts them, at the first dot of the file name."""
    folder, slash, file = name.rpartition("/")
    stem, _, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", suffix.lower()


def _why_not(data: bytes) -> str:
    try:
        check_bytes(data, "the image")
    except UserError as error:
        return str(error).removeprefix("the image: ")
    return ""


def _rows_of_image(
    tar: Path,
    key: str,
    about: Mapping[str, bytes],
    image: dict[str, Any],
    domain: str,
    split: str,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one image: one, or those that `packing` wrote."""
    place = {"shard": tar.name, **{k: v for k, v in image.items() if k != "name"}}
    said = _json_of(tar, key, about)
    if {*REQUIRED} <= said.keys():
        rows = said.get("rows", [])
        for row in (said, *(rows if isinstance(rows, list) else [rows])):
            yield {**_checked(f"{tar}: {key}.json", row), **place}
        return
    if isinstance(said.get("label"), dict | list):
        raise UserError(f"{tar}: {key}.json: label must be a text or a number")
    name = about["cls"].decode("utf-8", "replace").strip() if "cls" in about else ""
    name = name or str(said.get("label", "")) or key.rpartition("/")[0]
    if not name:
        raise UserError(
            f"{tar}: {image['name']!r}: has no class; a sample needs a .cls, a .json with label, or a"
            " folder named by the class"
        )
    caption = about["txt"].decode("utf-8", "replace").strip() if "txt" in about else ""
    yield {
        "image_path": f"{tar.stem}/{image['name']}",
        "label": f"{domain}/{name}",
        "domain": domain,
        "split": split,
        "role": "train" if split == "train" else "both",
        **({"caption": caption or str(said["caption"])} if caption or "caption" in said else {}),
        **place,
    }


def _json_of(tar: Path, key: str, about: Mapping[str, bytes]) -> dict[str, Any]:
    if "json" not in about:
        return {}
    try:
        said = json.loads(about["json"])
    except (ValueError, RecursionError) as error:
        raise UserError(f"{tar}: {key}.json: not JSON: {error}") from None
    known = said if isinstance(said, dict) else {}
    return {name: value for name, value in known.items() if value is not None}


def _checked(source: str, row: Any) -> dict[str, Any]:
    """Return the columns of a manifest in a row of JSON. Raises UserError for a value of another type."""
    if not isinstance(row, dict):
        raise UserError(f"{source}: rows must be a list of objects")
    found = {k: row[k] for k in (*REQUIRED, *OPTIONAL) if row.get(k) is not None}
    for column, value in found.items():
        is_number = isinstance(value, int | float)
        if column in NUMBERS and not (is_number and abs(value) < LARGEST):
            raise UserError(f"{source}: {column} must be a number, below {LARGEST:,}")
        if not is_number and not isinstance(value, str):
            raise UserError(f"{source}: {column} must be a text")
    return {k: v if k in NUMBERS else str(v) for k, v in found.items()}


def _is_unicode(row: Mapping[str, Any]) -> bool:
    """Return whether Parquet can store the row's texts: other bytes of a tar are read as surrogates."""
    return not any("\ud800" <= c <= "\udfff" for v in row.values() if isinstance(v, str) for c in v)
