"""List the images to index (from a folder, an archive or a manifest), and read and write an index.

An index on disk has the images' paths, their vectors, and the name of the model.

    index.json      `Facts`: what is indexed with which model, and the name of the current generation
    g1/             a generation, a folder that is replaced as a whole:
    files.parquet   one row per image: image_path, domain, label (empty if unknown), file size and time
    vectors.npy     float32 (N R, D), unit vectors in the order of the rows, an image's regions together
    vectors.faiss   only with a faiss factory string
    .made-by-search marks the folder as made by this code, which may delete it

Shapes: N images, R regions of an image, D dimensions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeVar

import numpy as np
import pandas as pd
import xxhash
from numpy.lib.format import open_memmap
from pydantic import AfterValidator, Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from guie.base.errors import UserError
from guie.base.files import remove_own, replacing, write_json
from guie.base.seeds import seeded_draws
from guie.data.archives import unpacked
from guie.data.datasets.folder import image_files
from guie.data.images import Decode
from guie.data.manifest import load_manifest
from guie.rows.states import states

MANIFESTS = (".csv", ".parquet")


@dataclass(frozen=True)
class Pictures:
    """Images to index, as rows of files.parquet.

    Attributes: `skipped`, number of files that are not images, by reason.
    """

    root: Path
    files: pd.DataFrame
    skipped: Counter[str]
    decode: Decode = "seen"


def pictures_of(source: Path, root: Path | None = None) -> Pictures:
    """Return the images of a source, each once, sorted by path.

    In a folder, the first subfolder is the domain. Only a manifest has labels. An archive is inspected, then
    unpacked next to itself.

    Raises UserError if the source is missing or has no image.
    """
    if source.suffix in MANIFESTS:
        manifest = load_manifest(source, root)
        rows = manifest.table.drop_duplicates("image_path")[["image_path", "domain", "label"]]
        files = _with_states(rows, manifest.root)
        return Pictures(manifest.root.resolve(), files, Counter(), manifest.sidecar.decode)
    folder = unpacked(source)
    paths, skipped = image_files(folder)
    domains = [path.split("/")[0] if "/" in path else "" for path in paths]
    rows = pd.DataFrame({"image_path": paths, "domain": domains, "label": ""}, dtype=str)
    return Pictures(folder.resolve(), _with_states(rows, folder), skipped)


def shard_of(pictures: Pictures, number: int, count: int) -> Pictures:
    """Return one of `count` parts, chosen by a hash of the path. Raises UserError if it is empty.

    So every image stays in its part when others are added or removed.
    """
    draw_N = seeded_draws(0, pictures.files["image_path"])
    files = pictures.files[draw_N % np.uint64(count) == number].reset_index(drop=True)
    if files.empty:
        raise UserError(
            f"--shard {number}/{count}: has none of the {len(pictures.files):,} images; use fewer shards"
        )
    return replace(pictures, files=files)


def _with_states(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    known = states(root, rows["image_path"], by_content=False)
    rows = rows.reset_index(drop=True).assign(size_bytes=known.size_N, mtime_ns=known.time_N)
    return rows.sort_values("image_path", ignore_index=True)


VERSION = 1
FACTS, FILES, FLAT, FAISS = "index.json", "files.parquet", "vectors.npy", "vectors.faiss"
LISTS = "vectors.ivfdata"  # inverted lists of merged shards
MARK = ".made-by-search"  # written into each generation first, and deleted last
CHECKED = (FILES, FLAT, FAISS, LISTS)
# All files that this code writes into a generation. Any other file belongs to the user.
OWN_FILES = (FILES, "vectors.*", ".files.*.tmp.*", ".vectors.*.tmp.*")
COLUMNS = ["image_path", "domain", "label", "size_bytes", "mtime_ns", "content"]  # its hash
REMEDY = "index the images again into another --out"
# Larger files are hashed only when they are read completely anyway (update, merge). For 100 million images
# of 64 dimensions, vectors.npy has 25 GB. Hashing it would delay each query by at least ten seconds, and an
# approximate search reads little of it. Below this size, hashing takes a fraction of a second.
HASHED_BYTES = 2**30
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


def _paired(sureness: Confidence) -> Confidence:
    if sureness["labelled"] and len(sureness.get("share", ())) != len(sureness["similarity"]):
        raise ValueError("share and similarity must have the same length")
    return sureness


class Confidence(TypedDict):
    """Measurements of `guie.search.engines.measure_confidence`."""

    labelled: bool
    pictures: int
    similarity: Annotated[list[FiniteFloat], Field(min_length=1)]
    right: NotRequired[FiniteFloat]
    share: NotRequired[list[FiniteFloat]]


@dataclass(frozen=True)
class Checksum:
    """Detects a damaged file. xxHash is fast, but does not protect against forgery."""

    size_bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class Facts:
    """Description of an index, stored in index.json.

    Attributes: `model`, its path or name, with `size_px` and `fit` for a library's model; `recipe`, a hash
    of all that a vector depends on, except the image; `source` and `root`, where the images are;
    `factory`, faiss' string, None for exact search; `sureness`, see `guie.search.engines`; `checksums` of
    the generation's files by name.
    """

    model: str
    recipe: str
    dimension: Count
    pictures: Count
    source: str
    root: str
    size_px: Count | None = None
    fit: Literal["squash", "pad", "crop"] = "squash"
    precision: str = "no"  # of autocast, when the images were embedded
    factory: str | None = None
    probes: Count | None = None
    recall: dict[str, float] = field(default_factory=dict)
    sureness: Annotated[Confidence, AfterValidator(_paired)] | None = None
    shard: str | None = None
    regions: Literal[1, 5, 14] = 1  # vectors of an image, see `guie.search.regions`
    decode: Decode = "seen"  # of the manifest
    # Must be a name in the folder: `../..` would read files outside it
    generation: Annotated[str, Field(pattern="^g[0-9]+$", validate_default=True)] = ""
    version: int = VERSION
    checksums: Annotated[dict[str, Checksum], Field(min_length=2, validate_default=True)] = field(
        default_factory=dict
    )


FACTS_TYPE = TypeAdapter(Facts)


@dataclass(frozen=True)
class Index:
    """An opened index. An update that replaces its files does not change it.

    Attributes: `vectors_ND`, (N R, D), memory-mapped.
    """

    folder: Path
    facts: Facts
    files: pd.DataFrame
    vectors_ND: np.ndarray

    @property
    def data(self) -> Path:
        """The folder of this generation's files."""
        return self.folder / self.facts.generation

    @property
    def description(self) -> str:
        """The line that search.py prints."""
        facts = self.facts
        kind = facts.factory or "flat, exact"
        recall = "".join(f", {k.replace('_', ' ')} {v:.3f}" for k, v in facts.recall.items())
        regions = f" of {facts.regions} regions" if facts.regions > 1 else ""
        return (
            f"{self.folder}: {facts.pictures:,} images{regions}, {facts.dimension} dimensions"
            f" ({kind}{recall})"
        )


def recipe_hash(recipe: dict[str, Any]) -> str:
    """Return the hash that identifies the model of an index."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def read_index(folder: str | Path, every_byte: bool = False) -> Index:
    """Open an index.

    Args:
        every_byte: hash all of its files, not only those up to HASHED_BYTES.

    Raises UserError if the index is missing or damaged.
    """
    folder = Path(folder)
    return read_current(folder, lambda facts: read_generation(folder, facts, every_byte))


Opened = TypeVar("Opened")


def read_current(folder: Path, read: Callable[[Facts], Opened]) -> Opened:
    """Return what `read` returns; call it again if an update has deleted what it was reading."""
    while True:
        facts = read_facts(folder)
        try:
            return read(facts)
        except UserError:
            if read_facts(folder).generation == facts.generation:
                raise


def read_generation(folder: Path, facts: Facts, every_byte: bool = False) -> Index:
    """Read the files that `facts` name. Raises UserError if they are damaged, or deleted by an update."""
    data = folder / facts.generation
    _check_files(data, facts, every_byte)
    rows = data / FILES
    try:
        files = pd.read_parquet(rows, columns=COLUMNS)
    except Exception as error:  # pyarrow raises almost anything on a damaged file
        raise UserError(f"{rows}: cannot be read ({error}); {REMEDY}") from None
    if len(files) != facts.pictures:
        raise UserError(f"{rows}: {len(files)} rows, but the index has {facts.pictures}; {REMEDY}")
    return Index(folder, facts, files, _read_vectors(data / FLAT, facts))


def _read_vectors(path: Path, facts: Facts) -> np.ndarray:
    """Memory-map the vectors (N R, D). Raises UserError if they do not match the rows."""
    try:
        vectors_ND = _mapped(path)
    except Exception as error:  # numpy raises almost anything on a damaged header
        raise UserError(f"{path}: cannot be read ({error}); {REMEDY}") from None
    wanted = (facts.pictures * facts.regions, facts.dimension)
    if vectors_ND.shape != wanted or vectors_ND.dtype != np.float32:
        raise UserError(f"{path}: has shape {vectors_ND.shape}, not {wanted}; {REMEDY}")
    return vectors_ND


def read_facts(folder: Path) -> Facts:
    """Read `index.json`. Raises UserError if it is missing or has an invalid value."""
    path = folder / FACTS
    try:
        facts = FACTS_TYPE.validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        raise UserError(f"{folder}: no index; create one with `search.py index`") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error}); {REMEDY}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(f"{part}: " for part in first["loc"])
        raise UserError(
            f"{path}: not an index of search.py, or damaged ({key}{first['msg']}); {REMEDY}"
        ) from None
    if facts.version != VERSION:
        raise UserError(f"{folder}: an index of version {facts.version}, not {VERSION}; {REMEDY}")
    return facts


def facts_of_existing(folder: Path) -> Facts | None:
    """Return the facts of the index in a folder, whose settings an update uses; None without one."""
    return read_facts(folder) if (folder / FACTS).exists() else None


def _check_files(data: Path, facts: Facts, every_byte: bool) -> None:
    """Raise UserError if a file differs from what was written."""
    for name in CHECKED:
        if name not in facts.checksums:
            continue
        path, written = data / name, facts.checksums[name]
        try:
            size_bytes = path.stat().st_size
            hashed = every_byte or size_bytes <= HASHED_BYTES
            whole = size_bytes == written.size_bytes
            whole = whole and (not hashed or checksum(path) == written)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
        if not whole:
            raise UserError(
                f"{path}: damaged: its {size_bytes:,} bytes differ from the {written.size_bytes:,} bytes"
                f" that were written; {REMEDY}"
            )


def checksum(path: Path) -> Checksum:
    """Return size and hash of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        return Checksum(file.tell(), digest)


def next_generation(folder: Path) -> Path:
    """Create a folder for a new generation; the current one stays until it is replaced."""
    numbers = [int(path.name[1:]) for path in _generations(folder)]
    data = folder / f"g{max(numbers, default=0) + 1}"
    data.mkdir(parents=True)
    (data / MARK).write_text("Made by search.py, which deletes its own files in here.\n")
    return data


def _generations(folder: Path) -> list[Path]:
    """Return the folders named like a generation; some may belong to the user."""
    return [path for path in folder.glob("g*") if re.fullmatch("g[0-9]+", path.name)]


def write_vectors(
    data: Path, blocks: Iterable[np.ndarray], count: int, dimension: int
) -> np.ndarray:
    """Write the vectors block by block, without holding all in memory; return them memory-mapped."""
    with replacing(data / FLAT) as temporary:
        whole_ND = open_memmap(temporary, "w+", np.float32, (count, dimension))
        at = 0
        for block_BD in blocks:
            whole_ND[at : at + len(block_BD)] = block_BD
            at += len(block_BD)
        whole_ND.flush()
        del whole_ND
    return _mapped(data / FLAT)


def _mapped(path: Path) -> np.ndarray:
    """Memory-map as a plain array: faiss rejects np.memmap once its torch functions are loaded."""
    return np.asarray(np.load(path, mmap_mode="r"))


def write_files(data: Path, files: pd.DataFrame) -> None:
    """Write the rows of a generation."""
    with replacing(data / FILES) as temporary:
        files[COLUMNS].to_parquet(temporary, index=False)


def publish(data: Path, facts: Facts) -> Index:
    """Make a complete generation the current one, and delete older ones.

    If the process is killed, either the old or the new index is valid. Only generations with a MARK are
    deleted. A user's folder with such a name is kept.
    """
    folder = data.parent
    checksums = {name: checksum(data / name) for name in CHECKED if (data / name).exists()}
    facts = replace(facts, generation=data.name, checksums=checksums)
    write_json(folder / FACTS, asdict(facts))
    for other in _generations(folder):
        if other != data and (other / MARK).is_file():
            _remove_generation(other)
    return read_index(folder)


def _remove_generation(data: Path) -> None:
    """Delete the files that this code writes, the mark last, and the folder if it is empty then."""
    for own in (OWN_FILES, (MARK,)):
        remove_own(data, own)
