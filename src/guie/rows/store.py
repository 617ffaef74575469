"""Keep computed rows on disk, in blocks that several jobs may add at the same time."""

import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import cache_folder, replacing
from guie.data.shards.storage import as_path, listed, put, read_object, request, shown, url_of
from guie.rows.states import KEY, States

RECIPE, PARTS = "recipe.json", "parts.json"
KEYS = re.compile(r"[0-9a-f]{64}\.key\.npy")
CONNECTIONS = 32
# A block's files, and the temporary files of a killed process (see `replacing`)
OWN_FILE = re.compile(
    r"[0-9a-f]{64}\.(key\.npy|npy|parquet)|\.([0-9a-f]{64}(\.key)?|recipe|parts)\.\d+(-[0-9a-f]{8})?\.tmp\.\w+"
)

logger = logging.getLogger(__name__)


class Rows:
    """(N, D) rows over several blocks; `rows[positions]` reads those rows, as float32.

    Blocks are memory-mapped once each, so they need not fit into memory, and processes share them.
    """

    def __init__(self, blocks: Sequence[Path], block_N: np.ndarray, row_N: np.ndarray, dim: int):
        self._block_N, self._row_N = block_N, row_N
        self._mapped = lru_cache(maxsize=None)(lambda n: np.asarray(np.load(blocks[n], "r")))
        self.shape, self.ndim, self.dtype = (len(row_N), dim), 2, np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        block_N, row_N = self._block_N[rows], self._row_N[rows]
        if np.any(block_N < 0):
            raise LookupError("a row that is not in the store")
        shape, block_N, row_N = np.shape(row_N), np.reshape(block_N, -1), np.reshape(row_N, -1)
        found_ND = np.empty((len(row_N), self.shape[1]), np.float32)
        order = np.argsort(block_N, kind="stable")
        numbers, first = np.unique(block_N[order], return_index=True)
        for number, here in zip(numbers.tolist(), np.split(order, first)[1:], strict=True):
            found_ND[here] = self._mapped(number)[row_N[here]]
        return found_ND.reshape(*shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)


class Store:
    """The rows of one recipe.

    A block is two files: `<sha256>.npy`, rows of numbers, or `<sha256>.parquet`, records; and
    `<sha256>.key.npy`, their keys, written last.

    Args:
        folder: the parent folder of the stores of all recipes, on a disk or in a bucket (`s3://...`).
        recipe: all that a row depends on except its key: model, preprocessing, version.
        dtype: of rows of numbers on disk; float16 halves the disk space. None: records.
    """

    def __init__(
        self, folder: str | Path, recipe: Mapping[str, Any], dtype: type[np.floating] | None = None
    ):
        name = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = as_path(folder) / name
        self.url = url_of(self.folder)
        self.recipe, self.dtype = dict(recipe), dtype and np.dtype(dtype)
        self.suffix = "npy" if dtype else "parquet"

    def missing(self, states: States) -> np.ndarray:
        """Return the positions in `states` without a row, each key once, in order: int64 (M,).

        Every block that holds some of them is verified, but in a bucket. A damaged one is logged and removed.
        """
        names, block_N, _ = self._located(states)
        for block in np.unique(block_N[block_N >= 0]).tolist():
            if not self.url and not self._is_whole(names[block]):
                self._forget(names[block])
                block_N[block_N == block] = -1
        absent = np.flatnonzero(block_N < 0)
        _, first = np.unique(states.key_N[absent], return_index=True)
        return absent[np.sort(first)]

    def begin(self) -> None:
        """Write the recipe. Raises UserError if the folder is not writable."""
        if RECIPE not in self._names():
            self._write(RECIPE, json.dumps(self.recipe, indent=1).encode())

    def divide(self, states: States, parts: int) -> None:
        """Record that a list of files is computed in m parts: another m would cut other blocks.

        Raises UserError if it is computed in another number of parts.
        """
        known = json.loads(self._local(PARTS).read_text()) if PARTS in self._names() else {}
        names = "\n".join(states.names).encode(errors="surrogateescape")
        name = hashlib.sha256(names).hexdigest()[:16]
        if known.setdefault(name, parts) != parts:
            why = f"these {len(states):,} images are computed in {known[name]} parts"
            remedy = f"use --shard N/{known[name]}, or delete its {PARTS}"
            raise UserError(f"{shown(self.folder)}: {why}; {remedy}")
        self._write(PARTS, json.dumps(known, indent=1).encode())

    def add(self, states: States, rows: Any) -> None:
        """Write one block: (N, D) numbers, or a table of records. Raises UserError, also for an overflow."""
        if not len(states):
            return
        if self.dtype is None:
            content = rows.to_parquet(index=False)
        else:
            reach, most = np.abs(rows).max(axis=1), float(np.finfo(self.dtype).max)
            if not (reach <= most).all():  # also catches NaN
                worst = int(np.argmin(reach <= most))
                found = f"{states.names[worst]}: a feature has magnitude {reach[worst]:,.0f}"
                limit = f"features are cached as {self.dtype}, up to {most:,.0f}"
                raise UserError(f"{found}; {limit}, so this model's features cannot be cached")
            content = _as_npy(np.ascontiguousarray(rows, self.dtype))
        name = _hash(states.key_N, content)
        self._write(f"{name}.{self.suffix}", content)
        # Written last: a block without this file is ignored.
        self._write(f"{name}.key.npy", _as_npy(states.key_N))

    def open(self, states: States, dim: int) -> Rows:
        """Return the rows of these keys; reading one that is not in the store raises LookupError."""
        names, block_N, row_N = self._located(states)
        return Rows(self._blocks(names, block_N), block_N, row_N, dim)

    def table(self, states: States, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the records of keys that are all in the store, in the order of `states`."""
        names, block_N, row_N = self._located(states)
        assert (block_N >= 0).all(), "a record that is not in the store"
        used, number_N = np.unique(block_N, return_inverse=True)
        files = self._blocks(names, used)
        read = [pd.read_parquet(files[block], columns=columns) for block in used.tolist()]
        if not read:
            return pd.DataFrame(columns=columns)
        first = np.cumsum([0, *map(len, read)])
        everything = pd.concat(read, ignore_index=True)
        return everything.take(first[number_N] + row_N).reset_index(drop=True)

    def remove(self) -> None:
        """Delete the rows, and the folders that are then empty; files of others stay."""
        own = [name for name in self._names() if OWN_FILE.fullmatch(name)]
        for name in [*own, PARTS, RECIPE]:
            self._delete(name)
        with suppress(OSError):  # other files are in them
            self.folder.rmdir()
            self.folder.parent.rmdir()

    def _located(self, states: States) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Return the blocks' names, and the block and the row in it of each key; block -1 if absent.

        A block without readable keys is logged and removed.
        """

        def content_of(file: str) -> bytes:
            with suppress(OSError):
                return self._local(file).read_bytes()
            return b""

        names, keys = [], []
        files = sorted(name for name in self._names() if KEYS.fullmatch(name))
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for file, content in zip(files, pool.map(content_of, files), strict=True):
                name, key_R = file.removesuffix(".key.npy"), _keys(content)
                if key_R is None:
                    self._forget(name)
                else:
                    names.append(name)
                    keys.append(key_R)
        if not keys:
            return names, np.full(len(states), -1), np.full(len(states), -1)
        key_M = np.concatenate(keys)
        order = np.argsort(key_M, kind="stable")
        sizes, key_M = [len(key_R) for key_R in keys], key_M[order]
        block_M = np.repeat(np.arange(len(keys)), sizes)[order]
        row_M = np.concatenate([*map(np.arange, sizes)])[order]
        place_N = np.minimum(np.searchsorted(key_M, states.key_N), len(key_M) - 1)
        block_N = np.where(key_M[place_N] == states.key_N, block_M[place_N], -1)
        return names, block_N, row_M[place_N]

    def _blocks(self, names: Sequence[str], used: np.ndarray) -> list[Path]:
        """Return the file of each block; those of a bucket are fetched if they are used."""
        wanted = {names[block] for block in np.unique(used).tolist() if block >= 0}

        def file(name: str) -> Path:
            return self._local(f"{name}.{self.suffix}") if name in wanted else Path()

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            return [*pool.map(file, names)]

    def _is_whole(self, name: str) -> bool:
        try:
            content = self._local(f"{name}.{self.suffix}").read_bytes()
            return _hash(np.load(self._local(f"{name}.key.npy")), content) == name
        except (OSError, ValueError, EOFError):
            return False

    def _forget(self, name: str) -> None:
        logger.warning(f"{shown(self.folder)}/{name}: damaged; its rows are computed again")
        for suffix in ("key.npy", self.suffix):
            self._delete(f"{name}.{suffix}")

    # Files of a folder, or objects of a bucket, which are read through local copies: a block never changes.

    def _names(self) -> list[str]:
        if self.url:
            return listed(self.url)
        return os.listdir(self.folder) if self.folder.is_dir() else []

    def _copy(self, name: str) -> Path:
        return cache_folder() / "rows" / self.folder.name / name if self.url else self.folder / name

    def _local(self, name: str) -> Path:
        copy = self._copy(name)
        if not self.url:
            return copy
        if name == PARTS or not copy.exists():
            with replacing(copy) as temporary:
                temporary.write_bytes(read_object(f"{self.url}/{name}"))
        return copy

    def _write(self, name: str, content: bytes) -> None:
        if self.url:
            put(f"{self.url}/{name}", content)
            return
        with replacing(self.folder / name) as temporary:
            temporary.write_bytes(content)

    def _delete(self, name: str) -> None:
        self._copy(name).unlink(missing_ok=True)
        if self.url:
            request(f"{self.url}/{name}", "rm_file", optional=True)


class Writer(ThreadPoolExecutor):
    """Adds blocks to a store, one in the background; leaving the context waits for the last."""

    def __init__(self, store: Store, states: States):
        super().__init__(1)
        self.store, self.states = store, states
        self._written: Future[None] | None = None

    def __call__(self, positions: np.ndarray, rows: Any) -> None:
        """Write the rows at these positions. Raises the UserError of the block before."""
        self.wait()
        self._written = self.submit(self.store.add, self.states.take(positions), rows)

    def wait(self) -> None:
        """Wait until all is written. Raises UserError."""
        written, self._written = self._written, None
        if written:
            written.result()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.wait()


def _keys(content: bytes) -> np.ndarray | None:
    """Return the keys of a file; None if it is damaged.

    Never in threads: numpy reads headers by `ast`, which fails in several threads of Python 3.11.
    """
    with suppress(ValueError, EOFError):
        key_R = np.load(io.BytesIO(content))
        return key_R if key_R.dtype == KEY else None
    return None


def _as_npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _hash(key_R: np.ndarray, content: bytes) -> str:
    digest = hashlib.sha256(key_R.tobytes())
    digest.update(content)
    return digest.hexdigest()
