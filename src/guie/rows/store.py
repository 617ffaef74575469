"""Keep computed rows on disk, in blocks that several jobs may add at the same time."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import read_json, replacing, write_json
from guie.rows.states import KEY, States

RECIPE, PARTS = "recipe.json", "parts.json"
# A block's files, and the temporary files of a killed process (see `replacing`)
OWN_FILE = re.compile(
    r"[0-9a-f]{64}\.(key\.npy|npy|parquet)|\.([0-9a-f]{64}(\.key)?|recipe|parts)\.\d+(-[0-9a-f]{8})?\.tmp\.\w+"
)

logger = logging.getLogger(__name__)


class Rows:
    """(N, D) rows over several blocks; `rows[positions]` reads those rows, as float32.

    Blocks are memory-mapped once each: they need not fit into memory, and the processes of one machine
    share the system's page cache.
    """

    def __init__(self, blocks: Sequence[Path], block_N: np.ndarray, row_N: np.ndarray, dim: int):
        self._blocks, self._block_N, self._row_N = blocks, block_N, row_N
        self._mapped = lru_cache(maxsize=None)(self._map)
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

    def _map(self, number: int) -> np.ndarray:
        return np.asarray(np.load(self._blocks[number], mmap_mode="r"))


class Store:
    """The rows of one recipe.

    A block is two files: `<sha256>.npy`, rows of numbers, or `<sha256>.parquet`, records; and
    `<sha256>.key.npy`, their keys, written last.

    Args:
        folder: the parent folder of the stores of all recipes.
        recipe: all that a row depends on except its key: model, preprocessing, version.
        dtype: of rows of numbers on disk; float16 halves the disk space. None: records.
    """

    def __init__(
        self, folder: str | Path, recipe: Mapping[str, Any], dtype: type[np.floating] | None = None
    ):
        self.folder = Path(folder) / _name(recipe)
        self.recipe, self.dtype = dict(recipe), dtype and np.dtype(dtype)

    def missing(self, states: States) -> np.ndarray:
        """Return the positions in `states` without a row, each key once, in order: int64 (M,).

        Every block that holds some of them is verified. A damaged block is logged and removed.
        """
        names, key_M, block_M, _ = self._index()
        place_N = _places(key_M, states.key_N)
        for block in np.unique(block_M[place_N[place_N >= 0]]).tolist():
            if not self._is_whole(names[block]):
                self._forget(names[block])
                place_N[block_M[place_N] == block] = -1
        absent = np.flatnonzero(place_N < 0)
        _, first = np.unique(states.key_N[absent], return_index=True)
        return absent[np.sort(first)]

    def begin(self) -> None:
        """Write the recipe. Raises UserError if the folder is not writable."""
        if not (self.folder / RECIPE).exists():
            write_json(self.folder / RECIPE, self.recipe)

    def divide(self, states: States, parts: int) -> None:
        """Record that a list of files is computed in m parts: another m would cut other blocks.

        Raises UserError if it is computed in another number of parts.
        """
        file = self.folder / PARTS
        known = read_json(file, f"delete {file}") if file.exists() else {}
        name = hashlib.sha256("\n".join(states.names).encode(errors="surrogateescape")).hexdigest()[
            :16
        ]
        if known.setdefault(name, parts) != parts:
            raise UserError(
                f"{self.folder}: these {len(states):,} images are computed in {known[name]} parts; go on"
                f" with --shard N/{known[name]}, or delete {file}"
            )
        write_json(file, known)

    def add(self, states: States, rows: Any) -> None:
        """Write one block: (N, D) numbers, or a table of records.

        Raises UserError if it cannot be written, or a number overflows the dtype.
        """
        if not len(states):
            return
        if self.dtype is None:
            content = rows.to_parquet(index=False)
        else:
            self._refuse_overflow(states, rows)
            content = np.ascontiguousarray(rows, self.dtype)
        name = _hash(states.key_N, content)
        with replacing(self._file(name)) as temporary:
            if isinstance(content, bytes):
                temporary.write_bytes(content)
            else:
                np.save(temporary, content)
        # Written last: a block without this file is ignored.
        with replacing(self._keys(name)) as temporary:
            np.save(temporary, states.key_N)

    def open(self, states: States, dim: int) -> Rows:
        """Return the rows of these keys; reading one that is not in the store raises LookupError."""
        names, place_N, row_N = self._located(states)
        return Rows([*map(self._file, names)], place_N, row_N, dim)

    def table(self, states: States, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the records of keys that are all in the store, in the order of `states`."""
        names, block_N, row_N = self._located(states)
        assert (block_N >= 0).all(), "a record that is not in the store"
        used, number_N = np.unique(block_N, return_inverse=True)
        files = [self._file(names[block]) for block in used.tolist()]
        read = [pd.read_parquet(file, columns=columns) for file in files]
        if not read:
            return pd.DataFrame(columns=columns)
        first = np.cumsum([0, *map(len, read)])
        everything = pd.concat(read, ignore_index=True)
        return everything.take(first[number_N] + row_N).reset_index(drop=True)

    def _located(self, states: States) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Return the blocks' names, and the block and the row in it of each key; block -1 if absent."""
        names, key_M, block_M, row_M = self._index()
        place_N = _places(key_M, states.key_N)
        if not len(key_M):
            return names, place_N, place_N
        return names, np.where(place_N < 0, -1, block_M[place_N]), row_M[place_N]

    def remove(self) -> None:
        """Delete the rows, and the folders that are then empty; files of others stay."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if OWN_FILE.fullmatch(path.name):
                path.unlink()
        for name in (PARTS, RECIPE):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # other files are in them
            self.folder.rmdir()
            self.folder.parent.rmdir()

    def _index(self) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
        """Return the blocks' names, the keys of all rows in order, and each key's block and row in it."""
        names, keys = [], [np.empty(0, KEY)]
        for path in sorted(self.folder.glob("[0-9a-f]*.key.npy")):
            if not OWN_FILE.fullmatch(path.name):
                continue
            try:
                key_R = np.load(path)
                if key_R.dtype != KEY:
                    raise ValueError
            except (OSError, ValueError, EOFError):
                self._forget(path.name.removesuffix(".key.npy"))
                continue
            names.append(path.name.removesuffix(".key.npy"))
            keys.append(key_R)
        key_M = np.concatenate(keys)
        lengths = [len(one) for one in keys[1:]]
        block_M = np.repeat(np.arange(len(names)), lengths)
        row_M = np.concatenate([np.empty(0, np.int64), *map(np.arange, lengths)])
        order = np.argsort(key_M, kind="stable")
        return names, key_M[order], block_M[order], row_M[order]

    def _is_whole(self, name: str) -> bool:
        file = self._file(name)
        try:
            content = file.read_bytes() if self.dtype is None else np.load(file)
            return _hash(np.load(self._keys(name)), content) == name
        except (OSError, ValueError, EOFError):
            return False

    def _forget(self, name: str) -> None:
        logger.warning(f"{self._file(name)}: damaged; its rows are computed again")
        for file in (self._keys(name), self._file(name)):
            file.unlink(missing_ok=True)

    def _keys(self, name: str) -> Path:
        return self.folder / f"{name}.key.npy"

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.{'npy' if self.dtype else 'parquet'}"

    def _refuse_overflow(self, states: States, rows_ND: np.ndarray) -> None:
        reach, most = np.abs(rows_ND).max(axis=1), float(np.finfo(self.dtype).max)
        if not (reach <= most).all():  # also catches NaN
            worst = int(np.argmin(reach <= most))
            raise UserError(
                f"{states.names[worst]}: a feature has magnitude {reach[worst]:,.0f}; features are"
                f" cached as {self.dtype}, up to {most:,.0f}, so this model's features cannot be cached"
            )


def _name(recipe: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def _hash(key_R: np.ndarray, content: bytes | np.ndarray) -> str:
    digest = hashlib.sha256(key_R.tobytes())
    digest.update(content if isinstance(content, bytes) else content.tobytes())
    return digest.hexdigest()


def _places(key_M: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Return where each of N keys first is among M sorted ones; -1 if it is not."""
    if not len(key_M):
        return np.full(len(key_N), -1)
    place_N = np.searchsorted(key_M, key_N)
    place_N[place_N == len(key_M)] = 0
    place_N[key_M[place_N] != key_N] = -1
    return place_N
