"""An index on disk: which pictures, their vectors, and the model that made them.

    index.json      what is indexed by which model: `Facts`, and which folder beside it has the rest
    g1/             one generation of it, replaced as a whole:
    files.parquet   a row a picture: image_path, domain, label (empty where unknown), the file's size and time
    vectors.npy     float32 (N, D) of unit length, in the rows' order
    vectors.faiss   beside them, where a faiss factory string was asked for

Shapes: N pictures, D dimensions.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.lib.format import open_memmap

from guie.base.errors import UserError
from guie.base.files import replacing, write_json

VERSION = 1
FACTS, FILES, FLAT, FAISS = "index.json", "files.parquet", "vectors.npy", "vectors.faiss"
LISTS = "vectors.ivfdata"  # inverted lists of merged shards, beside FAISS
COLUMNS = ["image_path", "domain", "label", "size_bytes", "mtime_ns"]
REMEDY = "index the pictures again into another --out"


@dataclass(frozen=True)
class Facts:
    """What an index is of.

    Attributes: `model`, the word that opens it, with `size_px` and `fit` of a library's; `recipe`, a
    hash of all that a vector depends on but the picture; `source` and `root`, where the pictures are;
    `factory`, faiss' string, None of a flat and exact one; `sureness`, see `guie.search.sureness`.
    """

    model: str
    recipe: str
    dimension: int
    pictures: int
    source: str
    root: str
    size_px: int | None = None
    fit: str = "squash"
    factory: str | None = None
    probes: int | None = None
    recall: dict[str, float] = field(default_factory=dict)
    sureness: dict[str, Any] | None = None
    shard: str | None = None
    generation: str = ""
    version: int = VERSION


@dataclass(frozen=True)
class Index:
    """An opened index; vectors stay on disk until they are asked for."""

    folder: Path
    facts: Facts
    files: pd.DataFrame

    @property
    def data(self) -> Path:
        """The folder of this generation's files."""
        return self.folder / self.facts.generation

    def vectors(self) -> np.ndarray:
        """(N, D), mapped from the disk. Raises UserError where there are others than the rows."""
        path = self.data / FLAT
        try:
            vectors_ND = _mapped(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error}); {REMEDY}") from None
        wanted = (self.facts.pictures, self.facts.dimension)
        if vectors_ND.shape != wanted or vectors_ND.dtype != np.float32:
            raise UserError(f"{path}: holds {vectors_ND.shape}, the index is of {wanted}; {REMEDY}")
        return vectors_ND


def recipe_hash(recipe: dict[str, Any]) -> str:
    """By which an index knows its model again."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def read_index(folder: str | Path) -> Index:
    """Open an index. Raises UserError where there is none, or not a whole one."""
    folder = Path(folder)
    try:
        facts = Facts(**json.loads((folder / FACTS).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(f"{folder}: no index; `search.py index` makes one") from None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder / FACTS}: cannot be read ({error}); {REMEDY}") from None
    if facts.version != VERSION:
        raise UserError(f"{folder}: an index of version {facts.version}, not {VERSION}; {REMEDY}")
    try:
        rows = folder / facts.generation / FILES
        files = pd.read_parquet(rows, columns=COLUMNS)
    except (OSError, ValueError) as error:
        raise UserError(f"{rows}: cannot be read ({error}); {REMEDY}") from None
    if len(files) != facts.pictures:
        raise UserError(f"{rows}: {len(files)} rows, the index is of {facts.pictures}; {REMEDY}")
    return Index(folder, facts, files)


def next_generation(folder: Path) -> Path:
    """A new folder for the files of an index; those of the present one stay until it is replaced."""
    numbers = [int(p.name[1:]) for p in folder.glob("g*") if p.name[1:].isdigit()]
    data = folder / f"g{max(numbers, default=0) + 1}"
    data.mkdir(parents=True)
    return data


def write_vectors(
    data: Path, blocks: Iterable[np.ndarray], count: int, dimension: int
) -> np.ndarray:
    """Write the vectors of a generation, block after block, never all in memory; returns them mapped."""
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
    """On the disk, yet a plain array: faiss refuses numpy's memmap once its torch functions are loaded."""
    return np.asarray(np.load(path, mmap_mode="r"))


def write_files(data: Path, files: pd.DataFrame) -> None:
    """Write the rows of a generation."""
    with replacing(data / FILES) as temporary:
        files[COLUMNS].to_parquet(temporary, index=False)


def publish(data: Path, facts: Facts) -> Index:
    """Make a generation, all of whose files are written, the index; older ones go.

    A kill leaves the old index or the new one, each whole.
    """
    folder = data.parent
    write_json(folder / FACTS, asdict(replace(facts, generation=data.name)))
    for other in folder.glob("g*"):
        if other != data and other.name[1:].isdigit():
            shutil.rmtree(other, ignore_errors=True)
    return read_index(folder)
