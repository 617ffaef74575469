"""Write the index of existing WebDataset tars, which stay as they are.

| member | used as |
|---|---|
| `.jpg` and other images | an image; its image_path is `<name of the tar>/<member>` |
| `.cls` | the class |
| `.json` | the class under `label`, a `caption`; a row that `packing` wrote is read as a whole |
| `.txt` | the caption |

A `.cls`, `.json` or `.txt` belongs to the images whose name begins like its own, up to a dot: `a.cls` to
`a.jpg` and `a.seg.png`, `a.1.cls` to `a.1.jpg`, `a.jpg.json` to `a.jpg`. The longest such name counts. If no
image in a folder has a `.cls` or a label, the folder is the class: `n01440764/n01440764_10026.jpg`.
Every other member is left out, and listed with the reason. Names obey `guie.data.names`.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from guie.base.errors import UserError, why_unreadable
from guie.base.files import cache_folder, refuse_foreign_list, replacing
from guie.data.archives import damage_as_user_error, fault_of_member, refuse_cut_short
from guie.data.images import FORMATS, picture_of
from guie.data.manifest import NUMBERS, OPTIONAL, REQUIRED, check
from guie.data.manifest.reading import read_sidecar
from guie.data.names import (
    HEAD_BYTES,
    copies,
    refuse_alike,
    refuse_splits,
    why_foreign,
    why_no_class,
    why_no_image,
)
from guie.data.shards.index import NAME, Shard, claimed, shard_of, write_index
from guie.data.shards.storage import (
    as_path,
    content_hash,
    copied,
    objects_below,
    put,
    shown,
    url_of,
)
from guie.rows.checks import VERSION
from guie.rows.filling import mapped

DROPPED = "index.dropped.csv"
LISTED = ["image_path", "reason"]  # its columns
SUFFIXES = (".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
COLUMNS = [*REQUIRED, *OPTIONAL, "class_name", "shard", "offset", "size", "content", "reason"]
SIDECARS = (".cls", ".json", ".txt")
SHOWN = 20  # illegal rows that are named
LARGEST = 2**53  # of a number in JSON, so that a column of float64 holds it


class Indexed(NamedTuple):
    """What `index_tars` wrote."""

    path: Path
    images: int
    shards: int
    dropped: pd.DataFrame  # image_path, reason


def index_tars(folder: Path, domain: str, split: str, workers: int) -> Indexed:
    """Write `index.parquet` of the tars in a folder; images that cannot be decoded are left out, and listed.

    The folder may be in a bucket: each tar is copied for a while, and the index is put next to them. Each tar
    is read once, and its table is kept until the index is written. An image's JSON may have another domain
    and split.

    Raises UserError for no tar, a damaged or compressed one, or an index that exists or is being written. A
    member must be safe and occur once, an image needs a class, and rows must be legal in a manifest.
    """
    url = url_of(as_path(folder))
    if url is None and (why := why_unreadable(folder, "folder")):
        raise UserError(why)
    if url:
        found = {as_path(name): state for name, state in objects_below(url).items()}
        place = cache_folder() / "indexing" / hashlib.sha256(url.encode()).hexdigest()[:16]
        exists = as_path(url) / NAME in found
    else:
        stats = {path: path.stat() for path in folder.glob("[!.]*.tar*")}
        found = {path: (known.st_size, known.st_mtime_ns) for path, known in stats.items()}
        place, exists = folder, os.path.lexists(folder / NAME)
    folder = as_path(folder)
    tars = sorted(tar for tar in found if tar.parent == folder and tar.name.endswith(SUFFIXES))
    tars = [tar for tar in tars if tar.name[0] != "."]
    if not tars:
        raise UserError(f"{shown(folder)}: no .tar in it")
    if exists:
        raise UserError(f"{shown(folder / NAME)}: exists; delete it to index these tars again")
    refuse_foreign_list(place / DROPPED, LISTED)
    with claimed(place) as scratch:
        # The table of each tar, which another domain, split or version does not share
        recipe = hashlib.sha256(repr([domain, split, VERSION]).encode()).hexdigest()[:8]
        files = {
            tar: scratch / f"{tar.name}.{found[tar][0]:x}-{found[tar][1]:x}.{recipe}.parquet"
            for tar in tars
        }
        todo = [pair for pair in files.items() if not pair[1].exists()]
        for _ in mapped(partial(_index_tar, domain, split), todo, workers, chunk=1):
            pass
        tables = {tar: pd.read_parquet(file) for tar, file in files.items()}
        table, dropped = _joined(tables.values(), shown(folder), place)
        (place / DROPPED).unlink(missing_ok=True)
        if len(dropped):
            with replacing(place / DROPPED) as temporary:
                dropped.to_csv(temporary, index=False)
        shards = [
            Shard(tar.name, found[tar][0], members["shard_sha256"].iloc[0])
            for tar, members in tables.items()
            if members["shard"].notna().any()
        ]
        write_index(place / NAME, table, shards)
        for name in (DROPPED, NAME) if url else ():
            if (place / name).exists():
                put(f"{url}/{name}", (place / name).read_bytes())
                (place / name).unlink()
    return Indexed(folder / NAME, len(table), len(shards), dropped)


def _joined(
    tables: Iterable[pd.DataFrame], source: str, place: Path
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of all tars as a legal manifest, and the members that are left out."""
    everything = pd.concat(tables, ignore_index=True)
    if everything.empty:
        raise UserError(
            f"{source}: no member of its tars has the name of an image, such as 0001.jpg; is this the"
            " right folder?"
        )
    everything = everything.dropna(axis="columns", how="all")
    for column in set(everything) - {*NUMBERS, "offset", "size", "content"}:
        everything[column] = everything[column].astype(object).fillna("").astype(str)
    dropped = everything.loc[everything["reason"] != "", LISTED]
    table = everything[everything["reason"] == ""].reset_index(drop=True)
    if table.empty:
        raise UserError(
            f"{source}: none of {len(everything):,} members of its tars is an image with a class, for example"
            f" {dropped['image_path'].iloc[0]}: {dropped['reason'].iloc[0]}"
        )
    if "class_name" in table:  # rows of a manifest have none
        built = table[table["class_name"] != ""]
        for names in (built["shard"].str.replace(r"\d+", "", regex=True), built["class_name"]):
            refuse_splits(source, names.unique())
        refuse_alike(source, built["class_name"].unique(), "write one of the two in the tars")
    table = table.drop(columns=["shard_sha256", "reason", "class_name"], errors="ignore")
    table = table.assign(decoded=VERSION)
    if faults := check(table, read_sidecar(place / NAME), range(len(table)), "row"):
        places = table["shard"] + ": " + table["image_path"]
        lines = [f"{source}/{places[row]}: {what}" for row, what in faults[:SHOWN]]
        raise UserError("\n".join([*lines, f"{source}: {len(faults):,} images cannot be indexed"]))
    return table, dropped


def _index_tar(domain: str, split: str, pair: tuple[Path, Path]) -> None:
    """Write the table of one tar. Raises UserError."""
    tar, written = pair
    with copied(tar) as file:
        try:
            table = pd.DataFrame(_rows_of(file, domain, split), columns=COLUMNS)
        except UserError as error:
            raise UserError(str(error).replace(str(file), shown(tar))) from None
        sha256 = shard_of(file, file.name).sha256
    table["content"] = table["content"].astype(np.uint64)
    with replacing(written) as temporary:
        table.assign(shard_sha256=sha256).to_parquet(temporary)


def _rows_of(tar: Path, domain: str, split: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a tar's images, and those of all other members, which have a reason."""
    images, sidecars, skipped = _members(tar)
    own = {image: _sidecars_of(image, sidecars) for image in images}
    used = {name for names in own.values() for name in names.values()}
    for name in sorted(sidecars.keys() - used):
        skipped[name] = "text or label of no image"
    about = {image: _about(tar, own[image], sidecars) for image in images}
    labelled = {os.path.dirname(image) for image in images if "label" in about[image]}
    repeated = copies(set(map(os.path.dirname, images)))
    for image, place in images.items():
        folder, known = os.path.dirname(image), about[image]
        rows: list[dict[str, Any]] = []
        if place["reason"] or folder in repeated:
            skipped[image] = place["reason"] or repeated[folder]
        elif "label" not in known and folder in labelled:
            skipped[image] = "no .cls and no label in .json, unlike other images of its folder"
        elif {*REQUIRED} <= known.keys():
            more = known.get("rows", [])
            every = known, *(more if isinstance(more, list) else [more])
            rows = [_checked(f"{tar}: {own[image]['.json']}", row) for row in every]
        else:
            row = _row(tar, image, known, domain, split)
            if reason := why_no_class(row["class_name"]):
                skipped[image] = reason if row["class_name"] else "empty label"
            else:
                rows = [row]
        for row in rows:
            row |= place
            # Bytes of another encoding are read as surrogates, which Parquet cannot store
            texts = (value for value in row.values() if isinstance(value, str))
            if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
                raise UserError(f"{tar}: {image!r}: its name or row is not in UTF-8")
            yield row
    for name, reason in skipped.items():
        printable = f"{tar.stem}/{name}".encode("utf-8", "backslashreplace").decode()
        yield {"image_path": printable, "reason": reason, "offset": 0, "size": 0, "content": 0}


def _members(tar: Path) -> tuple[dict[str, dict[str, Any]], dict[str, bytes], dict[str, str]]:
    """Return by name: the places of a tar's images, the texts of sidecars, the reasons for the rest."""
    images: dict[str, dict[str, Any]] = {}
    sidecars: dict[str, bytes] = {}
    skipped: dict[str, str] = {}
    names = set[str]()
    if tar.suffix != ".tar":
        raise UserError(
            f"{tar}: is compressed, and byte ranges need a plain tar; unpack it: gunzip or zstd -d"
        )
    with damage_as_user_error(tar), tarfile.open(tar, "r:") as file:
        for entry in file:
            if fault := fault_of_member(entry):
                raise UserError(f"{tar}: {entry.name!r}: {fault}")
            if entry.isdir():
                continue
            path = PurePosixPath(entry.name)
            name, suffix = str(path), path.suffix.lower()
            if entry.issym() or entry.islnk():
                kind = "symlink" if entry.issym() else "hardlink"
                skipped[name] = f"{kind}, which is not followed"
                continue
            if name in names:
                raise UserError(f"{tar}: {entry.name!r}: occurs twice in the archive")
            names.add(name)
            content = file.extractfile(entry)
            assert content is not None  # of a regular file
            if reason := "sparse file" if entry.issparse() else why_foreign(name):
                skipped[name] = reason
            elif suffix in SIDECARS:
                sidecars[name[: -len(suffix)] + suffix] = content.read()
            elif reason := why_no_image(name, partial(content.read, HEAD_BYTES)):
                skipped[name] = reason
            else:
                content.seek(0)
                data = content.read()
                place = {"shard": tar.name, "offset": entry.offset_data, "size": entry.size}
                images[name] = {**place, "content": content_hash(data), "reason": ""}
                try:
                    picture_of(data, formats=FORMATS)
                except UserError as error:
                    images[name]["reason"] = str(error).removeprefix("the picture: ")
        refuse_cut_short(file)
    return images, sidecars, skipped


def _sidecars_of(image: str, sidecars: Mapping[str, bytes]) -> dict[str, str]:
    """Return an image's sidecars by suffix: those of the longest names that its own begins with."""
    folder, slash, stem = image.rpartition("/")
    found: dict[str, str] = {}
    while stem:
        for suffix in SIDECARS:
            if (name := f"{folder}{slash}{stem}{suffix}") in sidecars:
                found.setdefault(suffix, name)
        stem = stem.rpartition(".")[0]
    return found


def _about(tar: Path, own: Mapping[str, str], sidecars: Mapping[str, bytes]) -> dict[str, Any]:
    """Return an image's JSON, with the text of `.cls` as label and that of `.txt` as caption."""
    about: Any = {}
    if ".json" in own:
        try:
            about = json.loads(sidecars[own[".json"]])
        except (ValueError, RecursionError) as error:
            raise UserError(f"{tar}: {own['.json']}: not JSON: {error}") from None
        about = about if isinstance(about, dict) else {}
        about = {name: value for name, value in about.items() if value is not None}
        if {*REQUIRED} <= about.keys():
            return about
        if isinstance(about.get("label"), dict | list):
            raise UserError(f"{tar}: {own['.json']}: label must be a text or a number")
    for suffix, key in ((".cls", "label"), (".txt", "caption")):
        if suffix in own:
            try:
                text = sidecars[own[suffix]].decode("utf-8-sig").strip()
            except UnicodeDecodeError:
                raise UserError(f"{tar}: {own[suffix]!r}: not in UTF-8; convert it") from None
            about[key] = text or about.get(key, "")
    return about


def _row(
    tar: Path, image: str, about: Mapping[str, Any], domain: str, split: str
) -> dict[str, Any]:
    name = str(about["label"]).strip() if "label" in about else os.path.dirname(image)
    if not name and "label" not in about:
        raise UserError(
            f"{tar}: {image!r}: has no class; a sample needs a .cls, a .json with label, or a folder named"
            " by the class"
        )
    return {
        "image_path": f"{tar.stem}/{image}",
        "label": f"{domain}/{name}",
        "class_name": name,
        "domain": domain,
        "split": split,
        "role": "train" if split == "train" else "both",
        **({"caption": str(about["caption"])} if "caption" in about else {}),
    }


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
