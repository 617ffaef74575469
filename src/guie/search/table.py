"""Keep an index as a LanceDB table: a row for each image, or for each region of it.

The table `images` of a folder, on a disk or in a bucket, has the columns of `SCHEMA` and the vectors, whose
metadata are `Facts`. Each change is a version, which readers see whole or not at all.
"""

import errno
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from warnings import filterwarnings

import lancedb
import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from guie.base.errors import DISK_FULL, UserError
from guie.config.types import Decode
from guie.data.shards.storage import as_path, listed, shown, url_of

filterwarnings("ignore", "lancedb fork support")  # of loaders, which do not use it

NAME, VECTOR, FACTS = "images", "vector", "facts"
KEY, ABOUT = ["image_path", "region"], ["image_path", "domain", "label"]
SCHEMA = [*((name, pa.string()) for name in ABOUT), ("region", pa.int16())]
SCHEMA += [(name, pa.int64()) for name in ("size_bytes", "mtime_ns", "content")]  # content: a hash
VERSIONS = f"{NAME}.lance/_versions"  # below the folder
FORMAT = 2
BATCH = 65_536  # rows read at once: with Lance's 1,024 a million take five times as long
UNREADABLE = "cannot be read; index the images again into another --out"


@dataclass(frozen=True)
class Facts:
    """Description of an index.

    Attributes: `source` and `root`, where the images are; `ann`, whether Lance's index answers; `recipe`, a
    hash of all that a vector depends on, except the image; `confidence`, see `guie.evaluation.confidence`;
    `changed`, images that changed since it was measured.
    """

    model: str = ""
    source: str = ""
    root: str = ""
    size_px: int | None = None
    fit: str = "squash"
    precision: str = "no"  # of autocast, when the images were embedded
    regions: int = 1  # vectors of an image, see `guie.data.regions`
    ann: bool = False
    decode: Decode = "seen"  # of the manifest
    recipe: str = ""
    dimension: int = 0
    domains: tuple[str, ...] = ()
    confidence: dict[str, Any] | None = None
    recall: float | None = None  # of the 10 nearest, if `ann`
    changed: int = 0
    format: int = FORMAT

    @property
    def schema(self) -> pa.Schema:
        """The schema of a new table."""
        kind, metadata = pa.list_(pa.float32(), self.dimension), {FACTS: json.dumps(asdict(self))}
        return pa.schema([*SCHEMA, pa.field(VECTOR, kind, metadata=metadata)])


class Index:
    """An index at one version, which stays readable while others write.

    Raises UserError if there is none, or if it is damaged or has another format.
    """

    def __init__(self, folder: str | Path):
        self.folder = as_path(folder)
        self.name = shown(self.folder)
        if not names_in(self.folder / VERSIONS):  # `connect` would make the folder
            raise UserError(f"{self.name}: no index; create one with `search.py index`")
        with faults(self.name, UNREADABLE):
            try:
                self.table = connect(self.folder).open_table(NAME)
                # A new table may have the version of the old one.
                self.stamp = self.table.version, self.table.list_versions()[-1]["timestamp"]
                metadata = self.table.schema.field(VECTOR).metadata or {}
                self.facts = TypeAdapter(Facts).validate_json(metadata.get(FACTS.encode(), b""))
            except (KeyError, ValidationError):
                raise UserError(f"{self.name}: not an index of search.py; choose another") from None
        if self.facts.format != FORMAT:
            fault = f"has format {self.facts.format}, not {FORMAT}; use the version of guie that made it"
            raise UserError(f"{self.name}: {fault}, or index the images again")

    @property
    def images(self) -> int:
        """The number of images."""
        return self.table.count_rows() // self.facts.regions

    def read(
        self, columns: Iterable[str], where: str | None = None, ordered: bool = True
    ) -> pa.Table:
        """Return rows, sorted by path and region: Lance promises no order. Raises UserError."""
        with faults(self.name, UNREADABLE):
            query = self.table.search().select([*dict.fromkeys([*KEY, *columns])]).limit(None)
            rows = (query.where(where) if where else query).to_batches(BATCH).read_all()
        return rows.sort_by([(name, "ascending") for name in KEY]) if ordered else rows

    def set_facts(self, **values: Any) -> None:
        """Change facts, if they differ. Raises UserError if they cannot be written."""
        before, self.facts = self.facts, replace(self.facts, **values)
        if self.facts != before:
            text = json.dumps(asdict(self.facts))
            with faults(self.name, "cannot be written"):
                self.table.update_field_metadata({"path": VECTOR, "metadata": {FACTS: text}})


def names_in(folder: Path) -> list[str]:
    """Return the names of what is in a folder; none if there is no folder. Raises UserError."""
    if url := url_of(folder):
        return listed(url)
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def connect(folder: Path) -> lancedb.DBConnection:
    """Open the database in a folder, which is made if it is absent."""
    # A server of one's own (AWS_ENDPOINT_URL) may have no certificate
    return lancedb.connect(shown(folder), storage_options={"allow_http": "true"})


def vectors_of(rows: pa.Table) -> np.ndarray:
    """Return the vectors (N, D) of rows."""
    flat = rows[VECTOR].combine_chunks().flatten()
    return np.asarray(flat).reshape(len(rows), -1) if len(rows) else np.empty((0, 0), np.float32)


def quoted(values: Iterable[str]) -> str:
    """Return strings as a list of SQL: `('a', 'b')`."""
    return "(" + ", ".join("'" + value.replace("'", "''") + "'" for value in values) + ")"


@contextmanager
def faults(name: str, what: str) -> Iterator[None]:
    """Raise the errors of Lance, of any class, as UserError: the name, what cannot be done, and why."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, pa.ArrowException) as error:
        words = f"{what} ({str(error).strip().partition(chr(10))[0][:300]})"
        full = "No space left" in str(error)
        raise UserError(f"{name}: {DISK_FULL[errno.ENOSPC] if full else words}") from error
