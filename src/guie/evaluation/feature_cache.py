"""Cache image features on disk, in verified shards; all processes read them, and the main one writes."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from accelerate import Accelerator

from guie.base.devices import from_main
from guie.base.errors import UserError, why_unreadable
from guie.base.files import replacing, write_json
from guie.data.image_checks.decoding import KEY, TYPES, file_states

INDEX_TYPES = {**TYPES, "shard": str, "row": int}
# A shard's files, and the temporary files of a killed process (see `replacing`)
OWN_FILE = re.compile(
    r"[0-9a-f]{64}\.(npy|parquet)|\.([0-9a-f]{64}|model)\.\d+(-[0-9a-f]{8})?\.tmp\.\w+"
)

logger = logging.getLogger(__name__)


class Features:
    """(N, D) rows over several shards; `features[rows]` reads those rows, as float32.

    Shards are memory-mapped once each: they need not fit into memory, and the processes of one
    machine share the system's page cache.
    """

    def __init__(self, shards: Sequence[Path], shard_N: np.ndarray, row_N: np.ndarray, dim: int):
        self._shards, self._shard_N, self._row_N = shards, shard_N, row_N
        self._mapped = lru_cache(maxsize=None)(self._map)
        self.shape, self.ndim, self.dtype = (len(row_N), dim), 2, np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        shard_N, row_N = self._shard_N[rows], self._row_N[rows]
        shape, shard_N, row_N = np.shape(row_N), np.reshape(shard_N, -1), np.reshape(row_N, -1)
        found_ND = np.empty((len(row_N), self.shape[1]), np.float32)
        order = np.argsort(shard_N, kind="stable")
        numbers, first = np.unique(shard_N[order], return_index=True)
        for number, here in zip(numbers.tolist(), np.split(order, first)[1:], strict=True):
            found_ND[here] = self._mapped(number)[row_N[here]]
        return found_ND.reshape(*shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)

    def _map(self, number: int) -> np.ndarray:
        return np.asarray(np.load(self._shards[number], mmap_mode="r"))


class FeatureCache:
    """The shards of one key.

    Args:
        folder: the parent folder of the caches of all keys.
        recipe: all that a feature depends on except the file: model, preprocessing, view.
        dtype: the type of the rows on disk; float16 halves the disk space.
    """

    def __init__(
        self, folder: str | Path, recipe: dict[str, Any], dtype: type[np.floating] = np.float16
    ):
        self.folder = Path(folder) / _key(recipe)
        self.recipe, self.dtype = recipe, np.dtype(dtype)

    def missing(self, states: pd.DataFrame) -> np.ndarray:
        """Return the positions in `states` without cached features, each file and crop once.

        Every shard that holds some of `states` is verified. A damaged shard is logged and removed.
        """
        index = self._index()
        used = set(states.merge(index, on=KEY)["shard"])
        for name in sorted(used):
            if not self._is_whole(name):
                self._forget(name)
                index = index[index["shard"] != name]
        place = states.merge(index, "left", on=KEY)["shard"]
        absent = states.reset_index(drop=True)[place.isna()].drop_duplicates(KEY)
        return absent.index.to_numpy()

    def begin(self) -> None:
        """Write the recipe to model.json. Raises UserError if the folder is not writable."""
        if not (self.folder / "model.json").exists():
            write_json(self.folder / "model.json", self.recipe)

    def add(self, states: pd.DataFrame, features_ND: np.ndarray) -> None:
        """Write one shard. Raises UserError if it cannot be written, or a value overflows the dtype."""
        reach, most = np.abs(features_ND).max(axis=1), float(np.finfo(self.dtype).max)
        if not (reach <= most).all():  # also catches NaN
            worst = int(np.argmin(reach <= most))
            raise UserError(
                f"{states['file'].iloc[worst]}: a feature has magnitude {reach[worst]:,.0f}; features are"
                f" cached as {self.dtype}, up to {most:,.0f}, so this model's features cannot be cached"
            )
        rows_ND = np.ascontiguousarray(features_ND, self.dtype)
        name = _shard_hash(states, rows_ND)
        with replacing(self._file(name)) as temporary:
            np.save(temporary, rows_ND)
        # Written last: a shard without this file is ignored.
        with replacing(self._file(name, "parquet")) as temporary:
            states.reset_index(drop=True).to_parquet(temporary, index=False)

    def open(self, states: pd.DataFrame, dim: int) -> Features:
        """Return the features of files that are all in the cache."""
        index = self._index()
        found = states.merge(index, "left", on=KEY)
        names, shards = pd.factorize(found["shard"])
        files = [self._file(name) for name in shards]
        return Features(files, names, found["row"].to_numpy(np.int64), dim)

    def _index(self) -> pd.DataFrame:
        """Return a table of every cached file's KEY, its shard, and its row in the shard."""
        tables = [pd.DataFrame(columns=list(INDEX_TYPES)).astype(INDEX_TYPES)]
        for path in sorted(self.folder.glob("[0-9a-f]*.parquet")):
            if not OWN_FILE.fullmatch(path.name):
                continue
            try:
                states = pd.read_parquet(path, columns=KEY)
            except (OSError, ValueError):
                self._forget(path.stem)
                continue
            tables.append(states.assign(shard=path.stem, row=np.arange(len(states))))
        index = pd.concat(tables, ignore_index=True).astype(INDEX_TYPES)
        return index.drop_duplicates(KEY)

    def _is_whole(self, name: str) -> bool:
        try:
            rows_ND = np.load(self._file(name))
            states = pd.read_parquet(self._file(name, "parquet"), columns=KEY)
        except (OSError, ValueError, EOFError):
            return False
        return _shard_hash(states, rows_ND) == name

    def _forget(self, name: str) -> None:
        logger.warning(f"{self._file(name)}: damaged; its features are computed again")
        self._file(name, "parquet").unlink(missing_ok=True)
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str, suffix: str = "npy") -> Path:
        return self.folder / f"{name}.{suffix}"


def caches_in(folder: Path) -> list[Path]:
    """Return the caches of any key in a folder, verified by their `model.json`, without symlinks."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if not path.is_symlink() and _is_cache(path)]


def remove_caches(folder: Path) -> None:
    """Delete the caches of any key in a folder, and the folder if it is then empty."""
    for cache in caches_in(folder):
        for path in cache.iterdir():
            if OWN_FILE.fullmatch(path.name):
                path.unlink()
        (cache / "model.json").unlink()  # last: until then the folder is recognised as a cache
        with suppress(OSError):  # other files are in it
            cache.rmdir()
    with suppress(OSError):
        folder.rmdir()


def _is_cache(folder: Path) -> bool:
    """Return whether the folder's name is the key of the recipe in it."""
    try:
        recipe = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return folder.name == _key(recipe)


def _key(recipe: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def _shard_hash(states: pd.DataFrame, rows_ND: np.ndarray) -> str:
    """Return SHA-256 of the files' states and their rows."""
    files = states[KEY].to_csv(index=False, header=False)
    return hashlib.sha256(files.encode() + rows_ND.tobytes()).hexdigest()


def fill(
    accelerator: Accelerator,
    cache: FeatureCache,
    states: pd.DataFrame,
    missing: np.ndarray,
    blocks: Iterable[np.ndarray],
) -> None:
    """Cache missing features block by block; the next block is computed while one is written.

    A killed run loses at most these two blocks. A run that is stopped writes the last complete block
    before this function raises.

    Args:
        states, missing: argument and result of `FeatureCache.missing`.
        blocks: the missing features, in order, the same in every process.

    Raises UserError, in the main process, if a block cannot be written.
    """
    if len(missing):  # an unwritable folder fails here, before hours of computing
        from_main(accelerator, cache.begin)
    done = 0
    with ThreadPoolExecutor(1) as writer, ExitStack() as stopped:
        written: Future[None] = writer.submit(lambda: None)
        stopped.callback(lambda: written.result())  # also if `blocks` raises
        for features_ND in blocks:
            rows = missing[done : done + len(features_ND)]
            from_main(accelerator, written.result)
            if accelerator.is_main_process:
                written = writer.submit(cache.add, states.iloc[rows], features_ND)
            done += len(rows)
        from_main(accelerator, written.result)


def readable_states(files: Sequence[str], decoder: str) -> pd.DataFrame:
    """Return `file_states`. Raises UserError if a file cannot be read."""
    states = file_states(files, decoder)
    absent = states.loc[states["size_bytes"] < 0, "file"]
    if len(absent):
        why = why_unreadable(absent.iloc[0], "image") or f"{absent.iloc[0]}: cannot be read"
        raise UserError(
            f"{why} ({len(absent):,} of {len(files):,} images); the root must be the folder that image_path"
            " is relative to"
        )
    return states
